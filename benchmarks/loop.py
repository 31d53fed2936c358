"""The training loop: what ``fit``, and data that take time, add to a step, beside the bare loop of the same step.

The bare loop runs twice in each round, before and after ``fit``, because the time of a step drifts; a round gives one
ratio to the mean of the two.

Reading waits, as for a disk, and uses no processor. Two kinds of step take the batches. A product on this processor
shares its cores and memory with what copies the next batch. One that waits too is what a processor does beside an
accelerator. The time that the loop waits for ``next`` is counted by itself; it leaves out the first batch, before which
nothing could be read ahead. On a machine with other work, reading may take longer than the step after all. So the time
that the loop waits for a batch whose reading has ended is counted too: it should be none, however slow the data are.
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


def _readers(step: Callable[[Any], Any], on_host: Any, share: float) -> dict[str, Callable[[int], Any]]:
    """Loops of a step that returns when it is done, with batches from different places.

    Each returns the shares of its time that it waited for a batch after the first, and for one that was already read.

    Args:
        share: of the time that a step took in the last loop with the batch on the device, how much reading takes.
    """
    from plait.training import prefetch

    on_device = jax.device_put(on_host)
    took, ends = [0.0], [0.0]  # seconds of a step; when each batch of a loop was read

    def held(calls: int) -> tuple[float, float]:
        begin = time.perf_counter()
        waited = loop([on_device] * calls)
        took[0] = (time.perf_counter() - begin) / calls
        return waited

    def read(calls: int) -> Iterator[Any]:
        ends.clear()
        for _ in range(calls):
            time.sleep(share * took[0])
            ends.append(time.perf_counter())
            yield on_host

    def loop(batches: Iterable[Any]) -> tuple[float, float]:
        ends[:] = [0.0] * len(batches) if isinstance(batches, list) else []
        asked, got = [time.perf_counter()], []
        for batch in batches:
            got.append(time.perf_counter())
            step(batch)
            asked.append(time.perf_counter())
        waits = [(b - a, b - max(a, end)) for a, b, end in zip(asked, got, ends, strict=False)][1:]
        return tuple(sum(each) / (asked[-1] - asked[0]) for each in zip(*waits, strict=True))  # pyright: ignore[reportReturnType]

    return {
        HELD: held,
        READ: lambda calls: loop(map(jax.device_put, read(calls))),
        PREFETCHED: lambda calls: loop(prefetch(read(calls))),
        AGAIN: lambda calls: loop([on_device] * calls),
    }


def _product(size: int) -> Callable[[Any], Any]:
    """A step that waits for its result, as a log of every step does."""
    import plait

    weight = plait.Param(jnp.ones((size, size)) / size)

    @plait.jit
    def step(weight: Any, batch: Any) -> Any:
        return (weight.value @ batch).mean()

    return lambda batch: float(step(weight, batch))


def _timed(loop: Callable[[int], Any], calls: int) -> tuple[float, float, Any]:
    """Milliseconds of a step, microseconds of the calling thread, and what the loop returned."""
    begin, host = time.perf_counter(), time.thread_time()
    returned = jax.block_until_ready(loop(calls))
    return (time.perf_counter() - begin) / calls * 1e3, (time.thread_time() - host) / calls * 1e6, returned


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
    on_host = np.eye(slow, dtype=np.float32)
    steps = {
        f"a product of {slow} x {slow}": _product(slow),
        "a step that waits 8 ms for a device": lambda _: time.sleep(0.008),
    }
    for name, step in steps.items():
        for share in (0.5, 0.9):
            title = f"loop: {name}, of batches that take {share:.0%} of it to read"
            loops = _readers(step, on_host, share)
            yield _table(title, [*columns, "waits for data", "data that are read"], loops, calls // 3, rounds)


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
        waits = [statistics.median(row[name][2][i] for row in measured) for i in range(len(columns) - 4)]
        table.rows.append([name, ms, f"{relative:.3f}", host, *(f"{wait:.2%}" for wait in waits)])
    return table
