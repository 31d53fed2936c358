"""Update contexts: identity carried through a JAX transform by hand."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest

import plait
from plait import Param
from plait.errors import GraphError, TraceContextError
from plait.flax.compat.update_context import UpdateContext, _active
from tests.oracles import describe
from tests.strategies import Node


class Pair(plait.Module):
    def __init__(self):
        self.left = Param(jnp.float32(1))
        self.right = Param(jnp.float32(2))


def rounds(change, *objects, tag="test", transform=jax.jit):
    """One round of the four steps around ``change(*inner objects)``; returns what step 4 gives."""

    @transform
    def pure(parts):
        with plait.merge_context(tag, inner=True) as merge:
            inner = [merge.merge(*part) for part in parts]
        out = change(*inner)
        with plait.split_context(tag) as split:
            return [split.split(item) for item in (*inner, out) if item is not None]

    with plait.update_context(tag):
        with plait.split_context(tag) as split:
            parts = [split.split(item) for item in objects]
        results = pure(parts)
        with plait.merge_context(tag, inner=False) as merge:
            return [merge.merge(*part) for part in results]


def swap(pair):
    pair.left, pair.right = pair.right, pair.left
    pair.left[...] *= 10
    pair.back = pair


def test_the_example_of_the_contract_swaps_by_identity_and_adds_a_cycle():
    """U8, U11, U15, U16, U18."""
    pair = Pair()
    left, right = pair.left, pair.right

    @jax.jit
    def pure(graphdef, state):
        ctx = plait.current_update_context("demo")
        inner = ctx.merge(graphdef, state)
        swap(inner)
        return ctx.split(inner)

    with plait.update_context("demo") as ctx:
        out = ctx.merge(*pure(*ctx.split(pair)))
    assert out is pair
    assert pair.back is pair
    assert pair.left is right
    assert pair.right is left
    assert float(pair.left[...]) == 20


def test_step_four_works_from_a_compile_cache():
    """U12: on the second round steps 2 and 3 do not run."""
    runs = 0

    @jax.jit
    def pure(graphdef, state):
        nonlocal runs
        runs += 1
        ctx = plait.current_update_context("demo")
        inner = ctx.merge(graphdef, state)
        inner.left, inner.right = inner.right, inner.left
        return ctx.split(inner)

    for _ in range(2):
        pair = Pair()
        left, right = pair.left, pair.right
        with plait.update_context("demo") as ctx:
            assert ctx.merge(*pure(*ctx.split(pair))) is pair
        assert pair.left is right
        assert pair.right is left
    assert runs == 1


def test_the_mapping_names_what_is_still_reachable():
    """U10: outer index to new index; objects that became unreachable have no entry."""
    pair = Pair()
    with plait.update_context("demo") as ctx:
        graphdef, state = ctx.split(pair)
        assert graphdef.index_mapping is None
        inner = ctx.merge(graphdef, state)
        assert ctx.index_ref is not None
        assert ctx.index_ref[0] is inner
        del inner.left
        after, _ = ctx.split(inner)
        assert dict(after.index_mapping) == {0: 0, 2: 1}
        assert ctx.index_ref is None


def test_several_roots_share_one_index_space():
    """U6, U13: a variable under two arguments is one variable inside and outside."""
    shared = Param(jnp.ones(2))
    first, second = plait.Dict(a=shared), plait.Dict(b=shared)

    def change(first, second):
        assert first["a"] is second["b"]
        second["b"][...] += 1

    results = rounds(change, first, second)
    assert results == [first, second]
    assert first["a"] is shared
    assert shared[0] == 2


def test_new_objects_appear_once():
    """U17: however many paths lead to them."""
    pair = Pair()

    def change(pair):
        pair.new = pair.again = Param(jnp.zeros(3))

    rounds(change, pair)
    assert pair.new is pair.again
    assert pair.new.shape == (3,)


def test_contexts_without_a_tag_only_share():
    """U6."""
    shared = Param(1.0)
    with plait.split_context() as ctx:
        one, two = ctx.split({"a": shared}), ctx.split({"b": shared})
    with plait.merge_context() as ctx:
        first, second = ctx.merge(*one), ctx.merge(*two)
    assert first["a"] is second["b"]
    assert first["a"] is not shared


def test_flatten_and_unflatten_are_the_flat_forms():
    """U6."""
    pair = Pair()
    with plait.split_context() as ctx:
        graphdef, flat = ctx.flatten(pair)
    with plait.merge_context() as ctx:
        again = ctx.unflatten(graphdef, flat)
    assert plait.graphdef(again) is plait.graphdef(pair)
    with plait.split_context() as ctx:
        _, leaves = ctx.flatten(pair, with_paths=False)
    assert [float(leaf) for leaf in leaves] == [1.0, 2.0]


def test_a_context_is_an_opaque_static_value():
    """U5."""
    assert UpdateContext("a") == UpdateContext("b")
    assert hash(UpdateContext("a")) == hash(UpdateContext("b"))
    assert jax.tree.leaves(UpdateContext("a")) == []


def test_contexts_nest_and_leave_nothing_behind():
    """U3, U38, U39, U14."""
    with plait.update_context("a") as outer, plait.update_context("a") as inner, plait.update_context("b"):
        assert plait.current_update_context("a") is inner is not outer
    assert _active.get() == ()
    assert outer.ref_index is None
    assert inner.index_ref is None


def test_a_decorator_opens_a_context_for_each_call():
    """U1."""

    @plait.update_context("demo")
    def current():
        """Text."""
        return plait.current_update_context("demo")

    assert current() is not current()
    assert current.__doc__ == "Text."
    assert current.__name__ == "current"


def test_no_reference_stays_after_the_context():
    """U14."""
    pair = Pair()
    rounds(lambda pair: None, pair)
    ref = weakref.ref(pair)
    del pair
    gc.collect()
    assert ref() is None


def test_an_error_pops_the_stack_and_does_not_advance():
    """U21, U40."""
    pair = Pair()
    with plait.update_context("demo") as ctx:
        with pytest.raises(KeyError, match="stop"), plait.split_context("demo") as split:
            split.split(pair)
            raise KeyError("stop")
        assert ctx.ref_index is None
    with pytest.raises(KeyError, match="stop"), plait.update_context("demo"):
        raise KeyError("stop")
    assert _active.get() == ()


def test_a_context_of_one_thread_is_invisible_in_another():
    """U37."""
    seen = []

    def look():
        try:
            plait.current_update_context("demo")
        except GraphError as error:
            seen.append(str(error))

    with plait.update_context("demo"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert "'demo'" in seen[0]


def test_a_split_in_a_deeper_trace_takes_what_the_outer_one_made():
    """U26: an object of the trace in which step 2 ran is none that was captured."""

    def pure(graphdef, state):
        ctx = plait.current_update_context("demo")
        pair = ctx.merge(graphdef, state)
        pair.new = Param(jnp.ones(2))
        return jax.checkpoint(lambda: ctx.split(pair))()

    with plait.update_context("demo") as ctx:
        same = ctx.merge(*jax.jit(pure)(*ctx.split(pair := Pair())))
    assert same is pair
    assert pair.new.shape == (2,)


# Fields, tags and steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["text", 3, ("a", 1), None, len])
def test_any_hashable_value_is_a_tag(tag):
    """U2: a tag finds its own context and no other."""
    with plait.update_context("other"), plait.update_context(tag) as context:
        assert plait.current_update_context(tag) is context
        assert context.tag == tag


@pytest.mark.parametrize("given", [True, None])
def test_the_step_of_a_merge_is_told_or_read_from_the_graphdef(given):
    """U7: a root with a mapping is a step-4 merge, one without is step 2."""
    pair = Pair()

    def options(inner):
        return {} if given is None else {"inner": inner}

    with plait.update_context("step"):
        with plait.split_context("step") as split:
            parts = split.split(pair)
        with plait.merge_context("step", **options(True)) as merge:
            inner = merge.merge(*parts)
        assert inner is not pair
        with plait.split_context("step") as split:
            parts = split.split(inner)
        with plait.merge_context("step", **options(False)) as merge:
            assert merge.merge(*parts) is pair


def test_arrays_of_the_arguments_are_not_carried_out():
    """U27: only objects and the output come back; a plain array argument is no output of the program."""
    pair, x = Pair(), jnp.arange(1000.0)
    lowered = plait.jit(lambda pair, x: pair.left + x[0]).lower(pair, x)
    assert "1000" not in lowered.as_text().split("return")[-1]


def graph():
    return Node(a=Param(jnp.float32(1)), items=[Param(jnp.float32(2))], inner=Node(w=Param(jnp.float32(3)), on=True))


def append(inner, x):
    inner.items.append(Param(x))


def exchange(inner, x):
    inner.a, inner.inner.w = inner.inner.w, inner.a


# What happens inside, and what the caller's own objects would lose by it.
CHANGES = {
    "a value": (lambda inner, x: inner.inner.w.set_value(x), "change the value of Param"),
    "metadata": (lambda inner, x: inner.a.set_metadata(note=1), "change the metadata of Param"),
    "a static attribute": (lambda inner, x: setattr(inner.inner, "on", False), "set the attribute 'on' of a Node"),
    "a new attribute": (lambda inner, x: setattr(inner.inner, "new", Param(x)), "set the attribute 'new' of a Node"),
    "an array attribute": (lambda inner, x: setattr(inner, "x", x), "set the attribute 'x' of a Node"),
    "a deleted attribute": (lambda inner, x: delattr(inner.inner, "on"), "delete the attribute 'on' of a Node"),
    "a container": (append, "set the attribute 'items' of a Node"),
    "an exchange": (exchange, "set the attribute 'a' of a Node"),
    "another node": (lambda inner, x: setattr(inner, "inner", Node()), "set the attribute 'inner' of a Node"),
    "a cycle": (lambda inner, x: setattr(inner.inner, "up", inner), "set the attribute 'up' of a Node"),
}
TRACES = {
    "jit": lambda f: plait.jit(f)(jnp.float32(5)),
    "jax.jit": lambda f: jax.jit(f)(jnp.float32(5)),
    "grad": lambda f: plait.grad(f)(jnp.float32(5)),
    "vmap": lambda f: plait.vmap(f)(jnp.ones(2)),
}


def by_hand(change, model, x):
    with plait.update_context("test") as context:
        inner = context.merge(*context.split(model))
        change(inner, x)
        context.merge(*context.split(inner))
    return x


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_is_not_changed(name, trace):
    """G64: refused as a direct write is, and nothing is written before."""
    (change, what), model = CHANGES[name], graph()
    before = describe(model)
    with pytest.raises(TraceContextError, match=f"cannot {what}"):
        TRACES[trace](lambda x: by_hand(change, model, x))
    assert describe(model) == before
    by_hand(change, model, jnp.float32(5))
    assert describe(model) != before


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_captured_model_may_be_read(trace):
    """Also as a part of what the trace itself makes, and changes."""
    model = graph()
    model.items += [1.0, (2, [None])]
    model.x = jnp.ones(2)
    before = describe(model)
    TRACES[trace](lambda x: by_hand(lambda inner, x: inner.a[...] + x, model, x))

    def around(x):
        own = Node(model=model, n=plait.Variable(x))
        by_hand(lambda own, x: (own.n.set_value(own.model.a * x), setattr(own, "new", own.model.inner)), own, x)
        assert own.new is model.inner
        return own.n[...]

    TRACES[trace](around)
    assert describe(model) == before


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_reference_is_written_through_from_any_trace():
    """V44: as ``set_value`` does; but its metadata belong to one."""
    model = Node(r=plait.Variable(jnp.float32(1), ref=True))
    plait.jit(lambda x: by_hand(lambda inner, x: inner.r.set_value(x), model, x))(jnp.float32(5))
    assert float(model.r[...]) == 5
    with pytest.raises(TraceContextError, match="cannot change the metadata of Variable"):
        plait.jit(lambda x: by_hand(lambda inner, x: inner.r.set_metadata(note=1), model, x))(jnp.float32(5))
