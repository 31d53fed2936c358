"""The call: its four steps, seen one by one. (rules U8 to U22, U26)"""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError
from plait.transforms.call.arguments import is_graph_leaf
from plait.transforms.call.call import Call
from plait.transforms.call.functions import check_function
from plait.transforms.call.gather import gather
from plait.transforms.call.inside import TracedArguments, TracedResult
from plait.transforms.call.outcome import Address
from tests.oracles import describe
from tests.strategies import Leafy, Node


def model():
    graph = Node(w=plait.Param(jnp.ones(2)), arr=jnp.zeros(1), items=[plait.Cache(jnp.float32(2))])
    graph.inner = Leafy(w=graph.w, up=graph)
    return graph


def crossed(f, *args, **kwargs):
    """The four steps around ``f``, without any JAX transform."""
    call = Call("test", f, args, kwargs)
    outputs, outcome = call.body(call.inputs)
    return outcome, call.finish(outputs, outcome)


def test_gathering_stops_at_objects():
    """U8, step 1: objects, plain leaves and structure apart, sharing seen across arguments."""
    m = model()
    gathered = gather(((m, {"x": 1.0, "v": m.w}, None), {"k": [m.inner]}))
    assert [id(root) for root in gathered.roots] == [id(m), id(m.w), id(m.inner)]
    assert gathered.plain == [1.0]
    assert len(gathered.values()) == 3
    assert [type(g).__name__ for g in gathered.structure.graphdefs if g is not None] == [
        "NodeDef",
        "NodeRef",
        "NodeRef",
    ]
    assert hash(gathered.structure) == hash(gather(((m, {"x": 2.0, "v": m.w}, None), {"k": [m.inner]})).structure)


def test_inside_the_objects_are_private():
    """U8, step 2: the same graph out of other objects, which belong to the current trace."""
    m = model()
    gathered = gather(((m, m.inner), {}))
    entered = TracedArguments(gathered.structure, gathered.values(), gathered.plain)
    (inner, part), _ = entered.tree
    assert describe(inner, part) == describe(m, m.inner)
    assert (inner is m, inner.w is m.w, part is inner.inner) == (False, False, True)


def test_a_plain_outcome_says_which_values_were_written():
    """U8, step 3; U19."""
    m = model()
    outcome, out = crossed(lambda m, x: (setattr(m.w, "value", m.w.value + x), x)[1], m, 1.0)
    assert (outcome.is_plain, outcome.written, out) == (True, ((1, Address(0, 0)),), 1.0)
    again, _ = crossed(lambda m, x: (setattr(m.w, "value", m.w.value * x), x)[1], m, 2.0)
    assert (again, hash(again)) == (outcome, hash(outcome))


OUTCOMES = {
    "nothing": (lambda m: None, True),
    "value": (lambda m: setattr(m.w, "value", m.w.value + 1), True),
    "structure": (lambda m: setattr(m, "z", 1), False),
    "array attribute": (lambda m: setattr(m, "arr", m.arr + 1), False),
    "metadata": (lambda m: m.w.set_metadata(note=1), False),
    "sharing": (lambda m: setattr(m, "z", m.w), False),
    "identity alone": (
        lambda m: (setattr(m, "w", new := plait.Param(m.w.value)), setattr(m.inner, "w", new))[0],
        False,
    ),
    "object returned": (lambda m: m.inner, False),
    "changed and changed back": (lambda m: (setattr(m, "z", 1), delattr(m, "z"))[0], True),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_any_change_of_structure_or_identity_is_noticed(case):
    """U8, U10: and what is plain is told apart from what is not."""
    f, plain = OUTCOMES[case]
    m, eager = model(), model()
    outcome, out = crossed(f, m)
    assert outcome.is_plain == plain
    assert describe(m, out) == describe(eager, f(eager))


def test_nothing_outside_changes_before_the_last_step():
    """U21."""
    m = model()
    before, objects = describe(m), [id(m.w), id(m.inner), id(m.items[0])]
    gathered = gather(((m,), {}))
    entered = TracedArguments(gathered.structure, gathered.values(), gathered.plain)
    (inner,), _ = entered.tree
    inner.w.value = jnp.zeros(5)
    inner.z = Node()
    inner.items.append(1)
    TracedResult("test", entered, inner.z, structural=True, labels=list)
    assert describe(m) == before
    assert [id(m.w), id(m.inner), id(m.items[0])] == objects


def test_an_outcome_serves_other_values_of_the_same_structure():
    """U12: a compiled function that is called again runs only the first and the last step."""
    first, second = model(), model()

    def f(m):
        m.z = plait.Param(m.w.value * 2)

    call, other = Call("test", f, (first,)), Call("test", f, (second,))
    assert other.body.key == call.body.key
    outputs, outcome = call.body(call.inputs)
    other.finish([[jnp.full(2, 7.0)] * len(port) for port in outputs], outcome)
    assert second.z.value.tolist() == [7.0, 7.0]
    assert second.inner.w is second.w
    assert not hasattr(first, "z")


def test_variables_that_hold_one_array_stay_apart():
    """U19: values are told by identity, and two variables may hold the same array."""
    shared = jnp.ones(2)
    m = Node(a=plait.Param(shared), b=plait.Param(shared))
    a, b = m.a, m.b
    crossed(lambda m: (setattr(m, "c", 1), setattr(m.a, "value", m.b.value * 2))[0], m)
    assert (m.a is a, m.b is b, m.a.value.tolist(), m.b.value is shared) == (True, True, [2.0, 2.0], True)


CAPTURED = {
    "returned": (lambda m, held: held, "found +a Leafy"),
    "attached": (lambda m, held: setattr(m, "child", held), "reached as child"),
    "variable attached": (lambda m, held: setattr(m, "child", [held.w]), r"reached as child\[0\]"),
    "in a new object": (lambda m, held: Node(of=held), "reached as of"),
}


@pytest.mark.parametrize("case", CAPTURED)
def test_captured_objects_are_not_carried_out(case):
    """U26."""
    f, match = CAPTURED[case]
    m, holder = model(), [Leafy(w=plait.Param(1.0))]
    before = describe(m)

    def inside(x):
        crossed(lambda m: f(m, holder[0]), m)
        return x

    with pytest.raises(ArgumentError, match=match):
        jax.jit(inside)(1.0)
    assert describe(m) == before


def test_what_a_transform_takes():
    """update_context.md, section 7."""
    assert [is_graph_leaf(x) for x in (Node(), plait.Param(1.0), plait.List(), [], jnp.ones(1))] == [True] * 3 + [
        False
    ] * 2
    with pytest.raises(TypeError, match=r"(?s)vmap takes a function.*found +an int"):
        check_function(3, "vmap")
    with pytest.raises(ValueError, match=r"(?s)bound method.*'hello' bound to a Talker"):
        check_function(Talker().hello, "vmap")
    check_function(Talker.hello, "vmap")


class Talker(plait.Module):
    def hello(self):
        return self


@pytest.mark.parametrize("transform", [lambda f: plait.vmap(f, in_axes=(0, None)), plait.grad], ids=["vmap", "grad"])
def test_a_type_error_of_the_function_stays_its_own(transform):
    """Also where JAX accepts an argument that is not an array, since it is not mapped or differentiated."""

    def f(x, how):
        raise TypeError("of the function")

    with pytest.raises(TypeError, match=r"^of the function"):
        transform(f)(jnp.ones(2), "relu")
