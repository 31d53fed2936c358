"""Transitions: calls of a jitted function that are not like the call before, and what lies outside a mean.

Each case is a single call, prepared anew each time, in wall time; the ratio is to the steady call of the same function.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .measure import pinned_thread, single_calls
from .models import floor_loop, object_functions, object_model
from .table import Table

Case = tuple[str, Callable[[], Any] | None, Callable[[], Any]]


def cases(count: int) -> list[Case]:
    """(what, what happens before each call, the call)."""
    import plait

    forward = object_functions(plait)["forward"]
    models = [object_model(plait, count) for _ in range(4)]
    model, other, x = models[0], object_model(plait, 5), jnp.ones(())
    plait.split(other)  # seen, so that its changes move the structure clock
    numbers, modes, turns = itertools.count(), itertools.cycle((model.eval, model.train)), itertools.cycle(models)

    def step() -> Any:
        return plait.jit(lambda model, x: forward(model, x))

    steady, elsewhere, mode, turn, keyword = (step() for _ in range(5))
    in_list = plait.jit(lambda models, x: forward(models[0], x))
    in_dict = plait.jit(lambda models, x: forward(models["model"], x))
    in_tuple = plait.jit(lambda models, x: forward(models[0], x))
    batch = plait.jit(lambda model, batch: forward(model, batch["x"]))
    returning = plait.jit(lambda model, x: (forward(model, x), model))
    making = plait.jit(lambda: object_model(plait, count))
    return [
        ("steady", None, lambda: steady(model, x)),
        (
            "another model changed its structure",
            lambda: setattr(other, "number", next(numbers)),
            lambda: elsewhere(model, x),
        ),
        ("after train() or eval()", lambda: next(modes)(), lambda: mode(model, x)),
        ("four models in turn", None, lambda: turn(next(turns), x)),
        ("a keyword argument", None, lambda: keyword(model, x=x)),
        ("the batch in a dict", None, lambda: batch(model, {"x": x, "y": x})),
        ("the model in a list", None, lambda: in_list([model], x)),
        ("the model in a tuple", None, lambda: in_tuple((model,), x)),
        ("the model in a dict", None, lambda: in_dict({"model": model}, x)),
        ("the model returned", None, lambda: returning(model, x)),
        ("a model made inside", None, making),
    ]


def run(*, quick: bool = False) -> Iterator[Table]:
    """Three tables: kinds of calls, frames, and tails with threads."""
    sizes = (5,) if quick else (5, 41, 201)
    calls = 20 if quick else 600
    yield calls_table(sizes, calls)
    yield frames_table((5, 9) if quick else (5, 41, 201, 1_001))
    yield tails_table(9 if quick else 41, 50 if quick else 2_000)


def calls_table(sizes: tuple[int, ...], count: int) -> Table:
    table = Table(
        "transitions: a call of a forward function, relative to the steady call",
        ["call", *(f"{size} arrays" for size in sizes), *(f"µs at {size}" for size in sizes)],
    )
    rows: dict[str, list[float]] = {}
    with pinned_thread():
        for size in sizes:
            measured = cases(size)
            durations: dict[str, list[float]] = {what: [] for what, _, _ in measured}
            for _ in range(count // 20):
                for what, prepare, call in measured:
                    single_calls(call, 4, prepare)
                    durations[what] += single_calls(call, 20, prepare)
            for what, found in durations.items():
                rows.setdefault(what, []).append(statistics.median(found))
    steady = rows["steady"]
    for what, times in rows.items():
        table.rows.append([what, *(t / s for t, s in zip(times, steady, strict=True)), *times])
    return table


def frames_table(sizes: tuple[int, ...]) -> Table:
    """How many Python frames one call enters; it may not grow with the model."""
    import plait

    table = Table(
        "frames: Python functions entered by one steady call", ["call", *(f"{size} arrays" for size in sizes)]
    )
    for name in ("forward", "rewrite"):
        row: list[Any] = [name]
        for size in sizes:
            model, x = object_model(plait, size), jnp.ones(())
            step = plait.jit(object_functions(plait)[name])
            for _ in range(3):
                step(model, x)
            row.append(_frames(lambda step=step, model=model, x=x: step(model, x)))
        table.rows.append(row)
    return table


def _frames(call: Callable[[], Any]) -> int:
    entered = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered - 1  # the call that was handed in


def tails_table(size: int, count: int) -> Table:
    """The slowest calls, and eight threads that call at once."""
    import plait

    model, x = object_model(plait, size), jnp.ones(())
    step = plait.jit(object_functions(plait)["forward"])
    floor = floor_loop("forward", size)
    contenders = {
        "jax.jit, flat list": lambda: floor(1),
        "plait.jit": lambda: step(model, x),
    }
    table = Table(
        f"tails and threads: forward, {size} arrays, wall time",
        ["contender", "p50 µs", "p99 µs", "p99 / p50", "calls/s, 1 thread", "calls/s, 8 threads"],
    )
    for name, call in contenders.items():
        single_calls(call, 10)
        with pinned_thread():
            durations = single_calls(call, count)
        p50, p99 = durations[count // 2], durations[count * 99 // 100]
        one, eight = (statistics.median(throughput(call, threads, count) for _ in range(5)) for threads in (1, 8))
        table.rows.append([name, p50, p99, p99 / p50, round(one), round(eight)])
    return table


def throughput(call: Callable[[], Any], threads: int, count: int) -> float:
    """Calls in a second, by several threads together."""

    def work() -> None:
        for _ in range(count // threads):
            out = call()
        jax.block_until_ready(out)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - start)
