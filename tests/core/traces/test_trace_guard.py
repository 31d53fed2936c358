"""Objects may be changed only in the trace that they belong to. (rule G64)"""

import re

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import TraceContextError
from tests.oracles import describe
from tests.strategies import Node

WRITES = {
    "value": (lambda m, x: setattr(m.w, "value", x), r"at +m\.w \(a Param\)"),
    "value in place": (lambda m, x: m.w.__setitem__(..., x), r"at +m\.w \(a Param\)"),
    "raw value": (lambda m, x: m.w.set_raw_value(x), r"m\.w"),
    "metadata": (lambda m, x: m.w.set_metadata(note=1), r"m\.w"),
    "new attribute": (lambda m, x: setattr(m, "z", x), "Node"),
    "removed attribute": (lambda m, x: delattr(m, "w"), "Node"),
    "List item": (lambda m, x: m.items.append(x), r"m\.items"),
    "Dict item": (lambda m, x: m.table.__setitem__("b", x), r"m\.table"),
    "update by a value": (lambda m, x: plait.update(m, {"w": x}), r"m\.w"),
    "update by a variable": (lambda m, x: plait.update(m, plait.State({"w": plait.Param(x)})), r"m\.w"),
    "update of a variable": (lambda m, x: plait.update(m.w, plait.Param(x)), r"m\.w"),
    "update of a new attribute": (lambda m, x: plait.update(m, {"z": x}), "Node"),
    "pop": (lambda m, x: plait.pop(m, plait.Param), "Node"),
    "random draw": (lambda m, x: m.noise(), "RngCount"),
}


@pytest.fixture
def model():
    return Node(w=plait.Param(1.0), items=plait.List([1]), table=plait.Dict(a=1), noise=plait.RngStream(0, tag="noise"))


@pytest.mark.parametrize("case", WRITES)
def test_a_captured_model_cannot_be_written(model, case):
    """G64: the error names the class, the path and the trace that the object belongs to, and nothing changes."""
    write, match = WRITES[case]
    before = describe(model)

    def f(x):
        write(model, x)
        return x

    with pytest.raises(TraceContextError, match=match) as caught:
        jax.jit(f)(1.0)
    assert re.fullmatch(
        r"the top level \(no JAX transform\), where the \w+ was created", caught.value.parts["expected"]
    )
    assert describe(model) == before


def test_objects_of_a_trace_cannot_be_written_after_it():
    """G64: objects that leaked out of a trace."""
    leaked = []
    jax.jit(lambda x: leaked.append(Node(w=plait.Param(x))) or x)(1.0)
    with pytest.raises(TraceContextError, match="Param"):
        leaked[0].w.value = jnp.float32(0)


# What the error says of the two traces -------------------------------------------------------------------------------


class Counts(plait.Module):
    def __init__(self):
        self.calls, self.weight = plait.Variable(jnp.zeros(())), plait.Param(jnp.ones(()))

    def __call__(self, x):
        self.calls[...] += 1
        return x * 2.0


X = jnp.ones(3)


def test_two_traces_of_one_kind_are_told_apart():
    def outer(x):
        model = Counts()
        return jax.vmap(lambda x: model(x))(x)

    with pytest.raises(
        TraceContextError,
        match=r"found +the current trace is a function under vmap\n +expected +another trace of the same kind",
    ):
        jax.vmap(outer)(jnp.ones((2, 3)))


def test_the_place_of_the_users_function_is_given():
    def body(carry, _):
        return model(carry), None

    model = Counts()
    with pytest.raises(TraceContextError, match=r"under scan \(body, test_trace_guard\.py:\d+\)"):
        jax.lax.scan(body, X, None, length=2)
