"""Stacks: tracing, lowering and memory of a training step of stacked blocks, beside the same by hand.

By hand: stacked dicts of arrays, ``jax.lax.scan`` over them, and a block in ``jax.checkpoint``. What is timed is
``jit(step).lower(...)`` with JAX's caches empty, since both sides would find the block there otherwise. The size of the
program is that of its StableHLO text, and temporary bytes are XLA's own figure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .table import Table
from .tracing import medians
from .transformer import LENGTH, WIDTH, block as plain_block, block_class, parameters as plain_parameters

DEPTHS = (16, 64)
TRACING, MEMORY, GROWTH = 1.10, 1.02, 1.10


def plain(depth: int, *, remat: bool) -> Callable[[], Any]:
    """The step by hand: a scan over dicts of stacked arrays."""
    parameters: Any = jax.tree.map(lambda x: jnp.stack([x] * depth), plain_parameters())

    def loss(parameters: Any, x: Any) -> Any:
        block = jax.checkpoint(plain_block, prevent_cse=False) if remat else plain_block
        x, _ = jax.lax.scan(lambda x, p: (block(p, x), None), x, parameters)
        return (x * x).mean()

    inputs = jnp.ones((2, LENGTH, WIDTH))

    def lower() -> Any:
        def step(parameters: Any, x: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(parameters, x)
            return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads)

        return jax.jit(step).lower(parameters, inputs)

    return lower


def stacked(depth: int, *, remat: bool) -> Callable[[], Any]:
    """The same step on a ``plait.Stack``."""
    import plait

    model = plait.Stack(block_class(plait), depth, rngs=plait.Rngs(0), remat=remat)

    inputs = jnp.ones((2, LENGTH, WIDTH))

    def lower() -> Any:
        def step(model: Any, x: Any) -> Any:
            value, grads = plait.value_and_grad(lambda model, x: (model(x) ** 2).mean())(model, x)
            parameters = plait.state(model, plait.Param)
            plait.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads))
            return value

        return plait.jit(step).lower(model, inputs)

    return lower


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table for time, one for the size of the program and its memory."""
    depths = (2, 4) if quick else DEPTHS
    ways = {"scan": False, "scan + checkpoint": True}
    time = Table(
        f"tracing and lowering a step of stacked blocks (budgets {TRACING}, and {GROWTH} for the growth)",
        ["way", "depth", "plain ms", "plait ms", "plait / plain", f"depth / {depths[0]}"],
    )
    size = Table(
        f"the program (budgets {GROWTH} for the growth of its text, {MEMORY} for temporary bytes)",
        ["way", "depth", "plain text", "plait text", f"depth / {depths[0]}", "plain bytes", "plait bytes", "ratio"],
    )
    for way, remat in ways.items():
        calls: dict[str, Callable[[], Any]] = {}
        for depth in depths:
            calls[f"plain {depth}"] = plain(depth, remat=remat)
            calls[f"plait {depth}"] = stacked(depth, remat=remat)
        found = medians({name: functools.partial(_cold, call) for name, call in calls.items()}, 1 if quick else 17)
        lowered = {name: call() for name, call in calls.items()}
        texts = {name: len(each.as_text()) for name, each in lowered.items()}
        memory = {name: temporary_bytes(each) for name, each in lowered.items()}
        for depth in depths:
            ours, theirs, first = f"plait {depth}", f"plain {depth}", f"plait {depths[0]}"
            time.rows.append(
                [way, depth, found[theirs], found[ours], found[ours] / found[theirs], found[ours] / found[first]]
            )
            ratio = memory[ours] / memory[theirs]
            row = [texts[theirs], texts[ours], texts[ours] / texts[first], memory[theirs], memory[ours], ratio]
            size.rows.append([way, depth, *row])
    yield time
    yield size


def _cold(call: Callable[[], Any]) -> None:
    jax.clear_caches()
    call()


def temporary_bytes(lowered: Any) -> int:
    """What XLA says a program needs beside its arguments and results."""
    return lowered.compile().memory_analysis().temp_size_in_bytes
