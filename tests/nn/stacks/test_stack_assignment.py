"""Blocks that are assigned to a stack, against a list to which copies are assigned. (rule ST16)"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import plait
from plait.errors import ArgumentError, GraphError, ShapeError
from tests.interrupts import WRITERS, interrupted

DEPTH = 4


class Leaf(plait.Module):
    def __init__(self, value: float) -> None:
        self.w = plait.Param(jnp.full((2,), value))
        self.constant = jnp.full((1,), value)
        self.note = plait.Variable(np.full((1,), value, np.float32))


class Other(Leaf):
    """Another class."""


class Holder(plait.Module):
    """A block that holds a list of blocks, or a stack of them."""

    def __init__(self, kind: Any, value: float) -> None:
        self.leaves = kind([Leaf(value + i / 10) for i in range(2)])


def numbers(block: Any) -> Any:
    if isinstance(block, Holder):
        return [numbers(leaf) for leaf in block.leaves]
    return [float(block.w[0]), float(block.constant[0]), float(block.note.value[0])]


class AsList(plait.List):
    """A list that copies the blocks that are assigned to it, and keeps one that is assigned to its own place."""

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            value = [
                block if block is own else plait.clone(block) for own, block in zip(self[index], value, strict=True)
            ]
        else:
            value = value if value is self[index] else plait.clone(value)
        super().__setitem__(index, value)


PERIODS: dict[str, Callable[[Any, int], Any]] = {
    "one period": lambda kind, i: Leaf(float(i)),
    "two periods": lambda kind, i: (Leaf, Other)[i % 2](float(i)),
    "stacks in a stack": lambda kind, i: Holder(kind, float(i)),
}


def made(kind: Any, period: str) -> Any:
    return kind([PERIODS[period](kind, i) for i in range(DEPTH)])


def layer(period: str) -> Any:
    return st.integers(0, 1 if period == "two periods" else DEPTH - 1).map(
        lambda i: 2 * i if period == "two periods" else i
    )


@st.composite
def programs(draw: Any) -> tuple[str, list[Callable[[Any, list[Any]], None]]]:
    """Steps that take a list, or a stack, and the blocks taken from it so far."""
    period = draw(st.sampled_from([*PERIODS]))
    place, held = layer(period), st.integers(0, 7)
    steps: list[Callable[[Any, list[Any]], None]] = []
    for value in range(draw(st.integers(1, 8))):
        i, j, k = draw(place), draw(place), draw(held)
        steps.append(
            draw(
                st.sampled_from(
                    [
                        lambda blocks, views, i=i: views.append(blocks[i]),
                        lambda blocks, views, i=i, j=j: blocks.__setitem__(i, blocks[j]),
                        lambda blocks, views, i=i, j=j: blocks.__setitem__(i, plait.clone(blocks[j])),
                        lambda blocks, views, i=i, j=j: exchange(blocks, i, j),
                        lambda blocks, views, i=i, k=k: views and blocks.__setitem__(i, views[k % len(views)]),
                        lambda blocks, views, k=k, v=value: views and write(views[k % len(views)], 10.0 + v),
                        lambda blocks, views, i=i, v=value: write(blocks[i], 20.0 + v),
                        lambda blocks, views, i=i, v=value: plait.jit(doubled)(blocks[i]),
                        lambda blocks, views: blocks.__setitem__(slice(0, 4, 2), [blocks[2], blocks[0]]),
                    ]
                )
            )
        )
    return period, steps


def exchange(blocks: Any, i: int, j: int) -> None:
    blocks[i], blocks[j] = blocks[j], blocks[i]


def leaf_of(block: Any) -> Any:
    return block.leaves[1] if isinstance(block, Holder) else block


def write(block: Any, value: float) -> None:
    leaf_of(block).w[0] = value


def doubled(block: Any) -> None:
    leaf = leaf_of(block)
    leaf.w[...] = 2 * leaf.w[...]


def check(period: str, steps: Any) -> None:
    """All layers, and all blocks that were taken out before, have the same values after each step."""
    looped, stacked = made(AsList, period), made(plait.Stack, period)
    theirs: list[Any] = []
    ours: list[Any] = []
    for step in steps:
        step(looped, theirs)
        step(stacked, ours)
        assert [numbers(block) for block in stacked] == [numbers(block) for block in looped]
        assert [numbers(block) for block in ours] == [numbers(block) for block in theirs]


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(programs())
def test_assigned_blocks_are_those_of_a_list_of_copies(program: Any) -> None:
    check(*program)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(programs())
def test_more_assigned_blocks_are_those_of_a_list_of_copies(program: Any) -> None:
    check(*program)


@pytest.mark.parametrize(
    ("block", "error", "match"),
    [
        (Other(1.0), ArgumentError, r"blocks\[1\] and the new block"),
        (put := Leaf(1.0), ShapeError, r"float32\(3,\)"),
    ],
    ids=["class", "shape"],
)
def test_a_block_that_does_not_fit_changes_nothing(block: Any, error: Any, match: str) -> None:
    put.w.set_value(jnp.ones(3))
    stack = made(plait.Stack, "one period")
    view = stack[0]
    with pytest.raises(error, match=match):
        stack[:2] = [Leaf(9.0), block]
    assert [float(each.w[0]) for each in stack] == [0.0, 1.0, 2.0, 3.0]
    view.w[0] = 4.0
    assert float(stack[0].w[0]) == 4.0


def test_a_stack_of_shapes_takes_no_values() -> None:
    stack = plait.eval_shape(lambda: made(plait.Stack, "one period"))
    with pytest.raises(GraphError, match="when the others only have a shape"):
        stack[0] = Leaf(1.0)


def test_assignment_in_a_transform_changes_the_stack() -> None:
    stack = made(plait.Stack, "two periods")

    @plait.jit
    def rotated(stack: Any) -> None:
        stack[::2] = [stack[2], Leaf(8.0)]

    rotated(stack)
    rotated(stack)
    assert [float(block.w[0]) for block in stack] == [8.0, 1.0, 8.0, 3.0]
    assert jax.tree.map(jnp.shape, [block.constant for block in stack]) == [(1,)] * 4


def test_views_are_freed_without_garbage_collection() -> None:
    """A view that only waits to be collected would be given the old values of its layer."""
    stack = made(plait.Stack, "stacks in a stack")
    views = [weakref.ref(block) for block in stack] + [weakref.ref(stack[1].leaves[0])]
    stack[0], stack[1] = stack[1], stack[0]
    assert [view() for view in views] == [None] * len(views)


class Sowing(Leaf):
    def __call__(self, x: Any) -> Any:
        self.sow(plait.Intermediate, "x", x)
        return x * self.w[0]


def test_layers_are_exchanged_while_their_values_are_captured() -> None:
    stack = plait.Stack([Sowing(float(i)) for i in range(3)])

    def run(stack: Any, x: Any) -> Any:
        stack[1](x)
        exchange(stack, 1, 2)
        stack[0] = Sowing(5.0)
        return stack[1](x)

    y, seen = plait.capture(run, plait.Intermediate)(stack, 1.0)
    assert float(y) == 2.0
    assert [len(seen[i]["x"].value) for i in seen] == [2]
    assert [float(block.w[0]) for block in stack] == [5.0, 2.0, 1.0]


@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_assignment_writes_nothing_or_everything() -> None:
    """U21: and a view of the layer is one as before, or has become a block of its own."""

    def make() -> Any:
        stack = made(plait.Stack, "one period")
        return stack, stack[0]

    def assign(given: Any) -> None:
        given[0][:2] = [Leaf(8.0), Leaf(9.0)]

    folder, seen = str(Path(plait.__file__).parent / "nn" / "stacks"), set()
    for stop, (stack, view) in interrupted(make, assign, folder, *WRITERS):
        values = [float(each.w[0]) for each in stack]
        view.w[0] = 5.0
        assert (values, float(stack[0].w[0])) in [([0.0, 1.0, 2.0, 3.0], 5.0), ([8.0, 9.0, 2.0, 3.0], 8.0)], stop
        seen.add(values[0])
    assert seen == {0.0, 8.0}
