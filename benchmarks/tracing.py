"""Tracing: tracing and lowering the training step of a transformer, beside the same mathematics in plain JAX functions.

The blocks are called in a Python loop, scanned, or recomputed (``remat``) in a loop. What is timed is
``jit(step).lower(...)`` of a function that JAX has not seen; values play no part.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import statistics
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .measure import FRAMES, below, pinned_thread
from .table import Table
from .transformer import LENGTH, WIDTH, block as plain_block, block_class, parameters as plain_parameters

BUDGETS = {"looped": 1.05, "scanned": 1.05, "remat": 1.25}


# Plain functions ------------------------------------------------------------------------------------------


def plain(way: str, blocks: int) -> Callable[[], Any]:
    """The step on dicts of arrays."""
    parameters: Any = [plain_parameters() for _ in range(blocks)]
    if way == "scanned":
        parameters = jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *parameters)

    def loss(parameters: Any, x: Any) -> Any:
        if way == "scanned":
            x, _ = jax.lax.scan(lambda x, p: (plain_block(p, x), None), x, parameters)
        else:
            block = jax.checkpoint(plain_block) if way == "remat" else plain_block
            for p in parameters:
                x = block(p, x)
        return (x * x).mean()

    inputs = jnp.ones((2, LENGTH, WIDTH))

    def lower() -> Any:
        def step(parameters: Any, x: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(parameters, x)
            return value, jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, grads)

        return jax.jit(step).lower(parameters, inputs)

    return lower


# Modules --------------------------------------------------------------------------------------------------


def modules(nnx: types.ModuleType, way: str, blocks: int) -> Callable[[], Any]:
    """The same step on modules of plait, or of Flax."""

    Block: Any = block_class(nnx)

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            if way == "scanned":
                make = nnx.vmap(lambda key: Block(nnx.Rngs(key)))
                self.blocks = make(jax.random.split(jax.random.key(0), blocks))
            else:
                self.blocks = nnx.List([Block(rngs) for _ in range(blocks)])

        def __call__(self, x: Any) -> Any:
            if way == "scanned":
                return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
            call = nnx.remat(Block.__call__) if way == "remat" else Block.__call__
            for block in self.blocks:
                x = call(block, x)
            return x

    model = Model(nnx.Rngs(0))

    inputs = jnp.ones((2, LENGTH, WIDTH))

    def lower() -> Any:
        def step(model: Any, x: Any) -> Any:
            value, grads = nnx.value_and_grad(lambda model, x: (model(x) ** 2).mean())(model, x)
            parameters = nnx.state(model, nnx.Param)
            nnx.update(model, jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, grads))
            return value

        return nnx.jit(step).lower(model, inputs)

    return lower


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of a call, in turns. A call takes a second, so none is made only to warm caches, but the first."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with pinned_thread():
        for call in calls.values():
            call()
        for round_ in range(rounds):
            for name, call in calls.items():
                gc.collect()  # what the contender before it left behind
                start = time.thread_time_ns()
                below(FRAMES * round_ // rounds, call)
                times[name].append((time.thread_time_ns() - start) / 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table, with a row for each way."""
    import plait

    blocks = 2 if quick else 24
    table = Table(
        f"tracing and lowering a training step of {blocks} blocks",
        ["way", "plain ms", "plait ms", "plait / plain", "budget", "Flax / plain"],
    )
    for way, budget in BUDGETS.items():
        calls = {"plain": plain(way, blocks), "plait": modules(plait, way, blocks)}
        with contextlib.suppress(ImportError):
            calls["Flax"] = modules(importlib.import_module("flax.nnx"), way, blocks)
        found = medians(calls, 1 if quick else 9)
        floor, ours = found["plain"], found["plait"]
        theirs = found["Flax"] / floor if "Flax" in found else "-"
        table.rows.append([way, floor, ours, ours / floor, budget, theirs])
    yield table
