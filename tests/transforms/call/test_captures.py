"""A model that a jitted function captures is a constant, and plait says so."""

import collections
import contextvars
import functools
import re
import sys
import threading
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.traces.captured import _captured_containers
from plait.errors import CapturedModelWarning, TraceContextError
from plait.transforms.call import body


def test_captured_objects_without_arrays_are_fine():
    settings = plait.Dict(rate=0.5)
    assert plait.jit(lambda x: x * settings.rate)(2.0) == 1.0


def test_a_module_or_a_partial_of_one_captures_too():
    layer = plait.Linear(2, 2, rngs=plait.Rngs(0))
    with pytest.warns(CapturedModelWarning, match="captures the Linear itself"):
        plait.jit(layer)(jnp.ones((1, 2)))
    with pytest.warns(CapturedModelWarning, match="captures argument 0 of the partial"):
        plait.jit(functools.partial(plait.Linear.__call__, layer))(jnp.ones((1, 2)))


def test_the_warning_points_at_the_callers_line():
    model = plait.Dict(weight=plait.Param(jnp.ones(2)))
    with pytest.warns(CapturedModelWarning) as caught:
        plait.jit(lambda x: x * model.weight)(jnp.ones(2))
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_tracer_left_in_a_captured_container_is_named_at_the_next_call():
    model = plait.Dict(blocks=[plait.Param(jnp.ones(2))])
    jax.jit(lambda x: model.blocks.append(plait.Param(x)))(jnp.ones(2))  # where plait is not asked
    with pytest.raises(TraceContextError, match=r"at +m\.blocks\[1\]"):
        plait.jit(lambda m: m.blocks[0] * 2)(model)


def model_with_containers():
    layer = plait.Dict(weight=plait.Param(jnp.ones(2)))
    return plait.Dict(net=plait.Dict(layers=[layer], heads={"a": layer, "deep": [jnp.zeros(2)]}))


CHANGES = {
    "append": (lambda net, x: net.layers.append(plait.Dict(weight=plait.Param(x))), r"net\.layers"),
    "replace": (lambda net, x: net.layers.__setitem__(0, plait.Param(x)), r"net\.layers"),
    "reorder": (lambda net, x: net.heads.update(a=net.heads.pop("a")), r"net\.heads"),
    "delete": (lambda net, x: net.heads.pop("a"), r"net\.heads"),
    "an array in a nested list": (lambda net, x: net.heads["deep"].insert(0, x), r"net\.heads\.deep"),
}
LIFTED = {
    "jit": lambda f: plait.jit(f)(jnp.ones(2)),
    "grad": lambda f: plait.grad(lambda x: f(x).sum())(jnp.ones(2)),
}


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@pytest.mark.parametrize("transform", LIFTED)
@pytest.mark.parametrize("name", CHANGES)
def test_changing_a_plain_container_of_a_captured_model_names_its_path_and_both_traces(name, transform):
    """V42, G64: as for variables, and nothing has changed."""
    model = model_with_containers()
    layers, heads = [*model.net.layers], {**model.net.heads, "deep": [*model.net.heads["deep"]]}
    change, path = CHANGES[name]

    def f(x):
        change(model.net, x)
        return x

    with pytest.raises(TraceContextError, match=rf"(?s)change the contents of .*at +model\.{path} \(a ") as error:
        LIFTED[transform](f)
    assert "the top level" in error.value.parts["expected"]
    assert re.search("under (jit|scan|vmap|remat|cond)|linearization|differentiation", error.value.parts["found"])
    assert model.net.layers == layers
    assert list(model.net.heads) == list(heads)
    assert [id(x) for x in model.net.heads["deep"]] == [id(x) for x in heads["deep"]]


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_function_that_raises_leaves_captured_containers_as_they_were():
    model = model_with_containers()

    @plait.jit
    def f(x):
        model.net.layers.append(x)
        raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        f(jnp.ones(2))
    assert len(model.net.layers) == 1


def made_by_another_thread():
    made = []
    thread = threading.Thread(target=lambda: made.append(model_with_containers()))
    thread.start()
    thread.join()
    return made[0]


def by_attribute():
    layers = plait.List([1])
    layers.last = []
    return layers


HOLDERS = {  # a model, and how a plain container of it is reached
    "List": (lambda: plait.List([plait.Param(1.0), [[]]]), lambda model: model[1]),
    "an attribute of a List": (by_attribute, lambda model: model.last),
    "a static list": (lambda: plait.Dict(last=plait.static([1])), lambda model: model.last),
    "another thread's": (made_by_another_thread, lambda model: model.net.layers),
    "merged": (lambda: plait.merge(*plait.split(model_with_containers())), lambda model: model.net.layers),
}


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@pytest.mark.parametrize("name", HOLDERS)
def test_plain_lists_of_a_captured_model_are_watched(name):
    """G64: whoever made it."""
    make, held = HOLDERS[name]
    model = make()
    before = [*held(model)]
    with pytest.raises(TraceContextError, match=r"(?s)change the contents of .*at +model"):
        plait.jit(lambda x: held(model).append(x))(jnp.ones(2))
    assert held(model) == before


def test_reading_containers_of_a_captured_model_is_fine():
    model = plait.Dict(sizes=[1, 2], table={"a": 1})
    assert plait.jit(lambda x: x * model.sizes[1] + model.table["a"])(1.0) == 3


def test_containers_of_an_argument_may_change():
    model = model_with_containers()
    plait.jit(lambda model, x: model.net.layers.append(plait.Dict(weight=plait.Param(x))))(model, jnp.ones(2))
    assert len(model.net.layers) == 2


def test_an_object_that_cannot_be_walked_may_be_captured():
    """Jitted methods of trainers capture the trainer, which may hold anything."""
    trainer = plait.Module()
    vars(trainer)["by_layer"] = {plait.Module(): plait.Param(1), plait.Module(): 2}  # keys that cannot be ordered
    assert plait.jit(lambda x: x + len(trainer.by_layer))(1) == 3


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_containers_of_a_captured_model_with_cycles_are_watched_once():
    """Each container comes once, however many ways lead to it."""
    model = model_with_containers()
    model.net.layers[0].above, model.me = model.net, model
    found = []
    jax.jit(lambda x: found.extend(_captured_containers(lambda: model)) or x)(1.0)
    containers = [model.net.layers, model.net.heads, model.net.heads["deep"]]
    assert sorted(id(each) for each, _ in found) == sorted(map(id, containers))
    with pytest.raises(TraceContextError, match=r"at +model\."):
        plait.jit(lambda x: model.me.net.layers.append(x))(jnp.ones(2))
    assert len(model.net.layers) == 1


# Ways to reach a model that do not name it ---------------------------------------------------------------------------


class Box(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.float32(1))


BOX = Box()


class Caller:
    """Calls, indexes and attributes of a plain object."""

    held = BOX

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model.w[...] * x

    def __getitem__(self, x):
        return self.model.w[...] * x

    def __getattr__(self, name):
        return self.model.w[...]

    @classmethod
    def get(cls):
        return cls.held


class Slots:
    __slots__ = ("model",)


@functools.cache
def cached():
    return BOX


def indirect_ways():
    caller, other, slots, local = Caller(BOX), Caller(None), Slots(), threading.local()
    slots.model = local.model = BOX
    variable = contextvars.ContextVar("variable")
    variable.set(BOX)
    reference, many, view = weakref.ref(BOX), collections.deque([BOX]), types.MappingProxyType({"a": BOX})
    return {
        "a call of an object": lambda x: caller(x),
        "a call of the second of a class": lambda x: caller(x) if other.model is None else other(x),
        "an index of an object": lambda x: caller[x],
        "__getattr__": lambda x: caller.anything * x,
        "a method of a class": lambda x: Caller.get().w[...] * x,
        "__slots__": lambda x: slots.model.w[...] * x,
        "a cache": lambda x: cached().w[...] * x,
        "a weak reference": lambda x: reference().w[...] * x,
        "a context variable": lambda x: variable.get().w[...] * x,
        "a thread's own": lambda x: local.model.w[...] * x,
        "a deque": lambda x: many[0].w[...] * x,
        "a view of a dict": lambda x: view["a"].w[...] * x,
        "getattr": lambda x: getattr(caller, "model").w[...] * x,  # noqa: B009
        "vars": lambda x: vars(caller)["model"].w[...] * x,
        "globals": lambda x: globals()["BOX"].w[...] * x,
    }


EAGER = {
    "fori_loop": lambda f, x: plait.fori_loop(0, 1, lambda i, x: f(x), x),
    "cond": lambda f, x: plait.cond(True, f, f, x),
    "remat": lambda f, x: plait.remat(f)(x),
}


@pytest.mark.sampled
@pytest.mark.parametrize("way", indirect_ways())
@pytest.mark.parametrize("transform", EAGER)
def test_a_model_that_is_reached_indirectly_has_its_current_values(transform, way):
    """U27: JAX keeps the trace of an equal function; one that has read a model is forgotten."""
    f = indirect_ways()[way]
    for value in (1.0, 2.0, 1.0):
        BOX.w[...] = value
        assert float(EAGER[transform](f, jnp.float32(3))) == 3 * value


@functools.cache
def table(n):
    return tuple(range(n))


@functools.lru_cache(maxsize=2)
def limited(n):
    return BOX if n else None


class Config:
    def __init__(self):
        self.rate, self.loss = 2.0, plait.Param(jnp.float32(1))


CONFIG = Config()
THREAD, VARIABLE = threading.local(), contextvars.ContextVar("plain", default=2.0)
THREAD.rate = 2.0
KEPT = {
    "a cache of numbers": lambda x: x * table(3)[1],
    "a thread's own number": lambda x: x * THREAD.rate,
    "a context variable": lambda x: x * VARIABLE.get(),
    "an object of which it reads numbers": lambda x: x * CONFIG.rate * len("loss"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_function_that_leads_to_no_model_is_traced_once(name):
    """U27: eager loops and the like are compiled again for each trace."""
    traces = []

    def f(x):
        traces.append(x)
        return KEPT[name](x)

    for _ in range(3):
        plait.remat(f)(jnp.float32(1)), plait.fori_loop(0, 1, lambda i, x: x, jnp.float32(1))
    assert len(traces) == 1


def test_a_cache_with_a_limit_leads_to_what_it_holds():
    """U27."""
    f = lambda x: limited(1).w[...] * x
    for value in (1.0, 2.0):
        BOX.w[...] = value
        assert float(plait.remat(f)(jnp.float32(3))) == 3 * value


def test_an_old_body_that_something_holds_is_not_used_again(monkeypatch):
    """U27: a debugger or a kept exception may hold what JAX was given; JAX would find its trace by equality."""
    model, held, scan = Box(), [], jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda f, *args, **options: held.append(f) or scan(f, *args, **options))

    def body(carry, x):
        return carry + model.w[...] * x, None

    for value in (1.0, 5.0):
        model.w[...] = value
        assert float(plait.scan(body)(jnp.float32(0), jnp.ones(1))[0]) == value
    assert held[0] != held[1]


def test_a_rule_that_reads_a_model_later_counts_for_the_function_around_it():
    """U27: the backward rule runs after the body of the loop was traced."""
    model = Box()

    @plait.custom_vjp
    def f(x):
        return x * 1.0

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g[1] * model.w[...],))

    def body(i, x):
        return f(x)

    for value in (1.0, 5.0):
        model.w[...] = value
        assert float(jax.grad(lambda x: plait.fori_loop(0, 1, body, x))(1.0)) == value


def test_of_one_function_so_many_structures_are_kept_and_no_more():
    """U27: a module-level function lives as long as the program."""

    def f(settings, x):
        return x * settings.rate

    for rate in range(body.MOST + 10):
        plait.remat(f)(plait.Dict(rate=rate), jnp.float32(1))
    assert len(body._kept[f]) == body.MOST


def test_an_object_of_a_trace_inside_the_function_is_not_captured():
    """U27: a model made under one of JAX's own transforms, and read under another inside of that."""

    @plait.jit
    def f(x):
        def inner(x):
            box = plait.Dict(w=plait.Param(x))
            return jax.grad(lambda y: y * box.w[...])(x)

        return jax.vmap(inner)(x)

    assert f(jnp.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("used", [True, False])
def test_a_captured_model_counts_when_it_is_read(used):
    """U27: a closure that holds a model without using it is no reason for a warning."""
    model = Box()
    f = plait.jit(lambda x: x * model.w[...] if used else x * (1 if model is not None else 2))
    with pytest.warns(CapturedModelWarning) if used else warnings.catch_warnings():
        f(jnp.float32(1))


def test_a_function_whose_code_was_replaced():
    """As interceptors do: the defaults are then not those of the code."""

    def replaced(x, k=1):
        return x

    def code(*args, **kwargs):
        return args[0] * 3

    replaced.__code__ = code.__code__
    assert float(plait.jit(lambda x: replaced(x))(1.0)) == 3.0


@pytest.mark.parametrize("transform", [plait.grad, functools.partial(plait.vmap, in_axes=(None, 0))])
def test_other_models_cost_an_eager_call_no_function_call(transform):
    """G64: their containers are compared, and nothing is searched."""
    f = transform(lambda model, x: (model.net.layers[0].weight * x).sum())
    model, x, counts, others = model_with_containers(), jnp.ones(2) if transform is not plait.grad else 1.0, [], []
    for _ in range(2):
        for _ in range(3):
            f(model, x)
        frames = []
        sys.setprofile(lambda frame, event, argument, frames=frames: frames.append(1) if event == "call" else None)
        try:
            f(model, x)
        finally:
            sys.setprofile(None)
        counts.append(len(frames))
        others += [model_with_containers() for _ in range(30)]
    assert counts[0] == counts[1]
