"""The training loop: what ``fit``, and data that take time, add to a step, beside the bare loop of the same step.

The bare loop runs twice in each round, before and after ``fit``, because the time of a step drifts; a round gives one
ratio to the mean of the two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .table import Table

BARE, FIT, AGAIN = "a loop with float(loss) now and then", "plait.training.fit", "the first loop again"
HELD, READ, PREFETCHED = "a batch that is on the device", "batches read in the loop", "plait.training.prefetch"


def _makers(size: int, log_every: int) -> dict[str, Callable[[int], Any]]:
    """Loops of a number of calls of one jitted step, a matrix product."""
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
        fit(step, {"model": fitted}, [batch] * 100, steps=calls, log_every=log_every, show=False)
        return fitted.weight.value

    return {BARE: loop, FIT: with_fit, AGAIN: loop}


def _readers(size: int, reading: float) -> dict[str, Callable[[int], Any]]:
    """Loops of a step that waits for its result, as a log of every step does, with batches from different places.

    Args:
        reading: the seconds that reading a batch takes, without work for the processor.
    """
    import plait
    from plait.training import prefetch

    @plait.jit
    def step(weight: Any, batch: Any) -> Any:
        return (weight.value @ batch).mean()

    weight, on_host = plait.Param(jnp.ones((size, size)) / size), np.eye(size, dtype=np.float32)
    on_device = jax.device_put(on_host)

    def read(calls: int) -> Iterator[Any]:
        for _ in range(calls):
            time.sleep(reading)
            yield on_host

    def loop(batches: Iterable[Any]) -> Any:
        return [float(step(weight, batch)) for batch in batches][-1]

    return {
        HELD: lambda calls: loop([on_device] * calls),
        READ: lambda calls: loop(map(jax.device_put, read(calls))),
        PREFETCHED: lambda calls: loop(prefetch(read(calls))),
        AGAIN: lambda calls: loop([on_device] * calls),
    }


def _timed(loop: Callable[[int], Any], calls: int) -> tuple[float, float]:
    """Milliseconds of a step, and microseconds of the calling thread."""
    begin, host = time.perf_counter(), time.thread_time()
    jax.block_until_ready(loop(calls))
    return (time.perf_counter() - begin) / calls * 1e3, (time.thread_time() - host) / calls * 1e6


def _size_of_a_millisecond() -> int:
    """The size of the matrices whose product takes about a millisecond here."""
    loop = _makers(256, 100)[BARE]
    loop(10)
    took = statistics.median(_timed(loop, 100)[0] for _ in range(5))
    return round(256 * (1 / took) ** (1 / 3))


def run(*, quick: bool = False) -> Iterator[Table]:
    calls, rounds = (20, 2) if quick else (300, 21)
    columns = ["loop", "ms a step", "relative", "host µs a step"]
    large = 64 if quick else _size_of_a_millisecond()
    for size, log_every in ((8, 100), (large, 100), (large, 10)):
        title = f"loop: a product of {size} x {size}, logged every {log_every} steps"
        yield _table(title, columns, _makers(size, log_every), calls, rounds)
    slow = 64 if quick else 2 * large  # about eight milliseconds
    held = _readers(slow, 0.0)[HELD]
    held(10)
    took = _timed(held, calls)[0] / 1e3
    for share in (0.5, 0.9):
        title = f"loop: a product of {slow} x {slow}, of batches that take {share:.0%} of it to read"
        yield _table(title, columns, _readers(slow, share * took), calls // 3, rounds)


def _table(title: str, columns: list[str], loops: dict[str, Callable[[int], Any]], calls: int, rounds: int) -> Table:
    """The loops, each relative to the mean of the first and of the last, which is the first again."""
    table = Table(title, columns)
    for loop in loops.values():
        loop(calls)
    measured = [{name: _timed(loop, calls) for name, loop in loops.items()} for _ in range(rounds)]
    first, *_, last = loops
    for name in loops:
        ms, host = (statistics.median(row[name][i] for row in measured) for i in range(2))
        relative = statistics.median(row[name][0] * 2 / (row[first][0] + row[last][0]) for row in measured)
        table.rows.append([name, ms, f"{relative:.3f}", host])
    return table
