"""The training loop: what ``fit`` adds to a step, beside the bare loop of the same step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .table import Table


def _makers(size: int, log_every: int) -> dict[str, Callable[[int], Any]]:
    """Loops of a number of calls of one jitted step, a matrix product that takes about a millisecond."""
    import plait
    from plait.training import fit

    class Model(plait.Module):
        def __init__(self) -> None:
            self.weight = plait.Param(jnp.ones((size, size)) / size)

    @plait.jit(donate=True)
    def step(model: Any, batch: Any) -> Any:
        model.weight.value = model.weight.value @ batch
        return model.weight.value.mean()

    batch = jnp.eye(size)
    bare, fitted = Model(), Model()

    def loop(calls: int) -> Any:
        loss: Any = None
        for number in range(calls):
            loss = step(bare, batch)
            if number % log_every == log_every - 1:
                float(loss)
        return loss

    def with_fit(calls: int) -> Any:
        fit(step, {"model": fitted}, [batch], steps=calls, log_every=log_every, show=False)
        return fitted.weight.value

    return {"a loop with float(loss) now and then": loop, "plait.training.fit": with_fit}


def run(*, quick: bool = False) -> Iterator[Table]:
    calls, rounds = (20, 2) if quick else (500, 15)
    columns = ["loop", "ms a step", "relative"]
    for size, log_every in ((8, 100), (256, 100), (256, 10)):
        table = Table(f"loop: a product of {size} x {size}, logged every {log_every} steps", columns)
        times: dict[str, list[float]] = {}
        makers = _makers(size, log_every)
        for _ in range(rounds):
            for name, loop in makers.items():
                begin = time.perf_counter()
                jax.block_until_ready(loop(calls))
                times.setdefault(name, []).append((time.perf_counter() - begin) / calls * 1e3)
        first = statistics.median(next(iter(times.values())))
        for name, values in times.items():
            median = statistics.median(values)
            table.rows.append([name, median, f"{median / first:.3f}"])
        yield table
