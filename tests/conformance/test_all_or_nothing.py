"""Whatever stops a call while it writes back, everything is as before, or everything is written. (rules U21, ST3)"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import plait
from plait.errors import GraphError, PlaitError, ShapeError
from tests.conformance.transforms import TRANSFORMS, Transform
from tests.interrupts import WRITERS, interrupted
from tests.oracles import describe
from tests.strategies import Node

WRITING = [transform for transform in TRANSFORMS if transform.writes]
STRUCTURAL = [transform for transform in WRITING if transform.structural]
X = jnp.ones(2)


def make() -> Any:
    inner = Node(n=plait.Variable(jnp.zeros(2)))
    return Node(w=plait.Param(jnp.ones(2)), n=plait.Variable(jnp.zeros(())), inner=inner)


def write(model: Any, x: Any) -> Any:
    model.n.value = model.n.value + 1
    model.inner.n.value = model.inner.n.value + 1
    return (model.w * x).sum()


def grow(model: Any, x: Any) -> Any:
    model.new, model.inner.up, model.tag = plait.Variable(model.w * 2), model, "seen"
    return write(model, x)


# Every line of every transform takes minutes; the transforms differ in what they pass to the same ``write_back``.
FAST = ("jit", "grad", "vmap", "scan", "cond", "update_context")


LONG = ("shard_map", "hessian", "jacrev", "hvp", "jacfwd")


def rows(transforms: list[Transform]) -> Any:
    marks = {name: [pytest.mark.slow, pytest.mark.long] for name in LONG} | {name: [] for name in FAST}
    marked = [pytest.param(each, marks=marks.get(each.name, [pytest.mark.slow])) for each in transforms]
    return pytest.mark.parametrize("transform", marked, ids=[each.name for each in transforms])


@pytest.mark.slow
@pytest.mark.sampled
@rows(WRITING)
def test_an_interrupt_leaves_no_half_done_update(transform: Transform) -> None:
    """U21: at whichever line of what writes the interrupt comes."""
    check_interrupts(transform, write)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.long
@rows(STRUCTURAL)
def test_an_interrupt_leaves_no_half_done_change_of_structure(transform: Transform) -> None:
    check_interrupts(transform, grow)


def check_interrupts(transform: Transform, f: Any) -> None:
    run = transform.run(f)
    after = make()
    run(after, X)
    allowed, seen = [describe(make()), describe(after)], set()
    assert allowed[0] != allowed[1]
    for stop, model in interrupted(make, lambda model: run(model, X), *WRITERS):
        assert describe(model) in allowed, stop
        seen.add(allowed.index(describe(model)))
    assert seen == {0, 1}


# Views of a stack -----------------------------------------------------------------------------------------------------


class Block(plait.Module):
    def __init__(self) -> None:
        self.w = plait.Param(jnp.ones(2))
        self.a, self.b, self.n = (
            plait.Variable(jnp.zeros(2)),
            plait.Variable(jnp.zeros(2)),
            plait.Variable(jnp.int32(3)),
        )


def write_too_much(block: Any, x: Any) -> Any:
    block.a.value = block.a.value + 1
    block.b.value = jnp.ones(5)
    return (block.w * x).sum()


def write_another_dtype(block: Any, x: Any) -> Any:
    block.a.value = block.a.value + 1
    block.n.value = jnp.asarray(2.7)  # of a weak type
    return (block.w * x).sum()


def add_an_attribute(block: Any, x: Any) -> Any:
    block.a.value = block.a.value + 1
    block.extra = plait.Variable(block.w * 2)
    return (block.w * x).sum()


VIEWS = {
    "a shape": (write_too_much, ShapeError, "different shape or dtype"),
    "a dtype": (write_another_dtype, ShapeError, "different shape or dtype"),
    "an attribute": (add_an_attribute, GraphError, "set the attribute 'extra' of a Block of one layer"),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("transform", "name"),
    [(each, name) for each in WRITING for name in VIEWS if each.structural or name != "an attribute"],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_a_view_refuses_changes_nothing(transform: Transform, name: str) -> None:
    """ST3: what was written before the refusal is undone; loops refuse to carry it at all."""
    f, error, match = VIEWS[name]
    stack = plait.Stack([Block() for _ in range(2)])
    before = describe(stack)
    if not transform.structural:
        error, match = PlaitError, "."  # a loop
    run = transform.run(f)
    view = stack[0]
    for _ in range(3):
        with pytest.raises(error, match=match):
            run(view, X)
        assert describe(stack) == before


def test_an_update_that_a_view_refuses_changes_nothing() -> None:
    stack = plait.Stack([Block() for _ in range(2)])
    before = describe(stack)
    for state in ({"a": X, "b": jnp.ones(5)}, {"a": X, "n": jnp.float32(2)}, {"a": X, "new": plait.Param(X)}):
        with pytest.raises((ShapeError, GraphError)):
            plait.update(stack[0], state)
        assert describe(stack) == before
    plait.update(stack[0], {"a": X, "b": X})
    assert float(stack[0].b[0]) == 1


def test_a_jitted_function_that_wrote_into_a_view_refuses_later_values() -> None:
    """The fast path, too: its cells may refuse a value."""
    stack = plait.Stack([Block() for _ in range(2)])
    view = stack[0]

    @plait.jit
    def step(block: Any, a: Any, b: Any) -> None:
        block.a.value, block.b.value = a, b

    for _ in range(3):
        step(view, X, X * 2)
    before = describe(stack)
    with pytest.raises(ShapeError, match="different shape or dtype"):
        step(view, X * 3, jnp.ones(5))
    assert describe(stack) == before
    step(view, X * 3, X)
    assert float(stack[0].a[0]) == 3
