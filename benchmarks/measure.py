"""Measuring by turns: contenders run in short interleaved rounds; each round gives one ratio to the first of them.

A round lasts milliseconds, so whatever else the machine does meets all contenders alike. The clock is the CPU time of
the calling thread, which stands still while another process has the core. The figure of a contender is the median of
its rounds, and the quartiles of the ratios within each round say how far to trust it. Results are waited for between
rounds, outside of the timed part, so no queue builds up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

# Makes that many calls and returns what is to be waited for afterwards.
Loop = Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: interleaved rounds.
        round_us: aimed duration of one contender in one round, in microseconds.
        fewest_calls: calls in a round, at least.
    """

    rounds: int = 151
    round_us: float = 2_000.0
    fewest_calls: int = 5


QUICK = Effort(rounds=3, round_us=100.0, fewest_calls=1)


@dataclasses.dataclass(frozen=True)
class Timing:
    """What the rounds gave for one contender.

    Attributes:
        us: time of a call in microseconds, the median of the rounds.
        ratio: that, divided by the same of the first contender.
        quartiles: the quartiles (first, second, third) of the ratios within each round.
    """

    us: float
    ratio: float
    quartiles: tuple[float, float, float]


FRAMES = 136  # of `below`, in a chunk of Python's stack


def below(frames: int, call: Callable[[], Any]) -> Any:
    """Call it from below so many frames."""
    return below(frames - 1, call) if frames else call()


def compare(loops: dict[str, Loop], effort: Effort) -> dict[str, Timing]:
    """Time the contenders by turns; ratios are to the first."""
    with pinned_thread():
        for loop in loops.values():
            jax.block_until_ready(loop(3))
        slowest = max(_time(loop, 3) for loop in loops.values())
        calls = max(effort.fewest_calls, int(effort.round_us / slowest))
        rounds: dict[str, list[float]] = {name: [] for name in loops}
        order = list(loops)
        shuffle = random.Random(0).shuffle
        for number in range(effort.rounds):
            shuffle(order)
            for name in order:
                time_it = functools.partial(_time, loops[name], calls)
                rounds[name].append(below(FRAMES * number // effort.rounds, time_it))
    first = rounds[next(iter(loops))]
    return {name: _timing(times, first) for name, times in rounds.items()}


def _time(loop: Loop, calls: int) -> float:
    jax.block_until_ready(loop(2))  # warms the caches that the contender before it has filled
    start = time.thread_time_ns()
    pending = loop(calls)
    elapsed = time.thread_time_ns() - start
    jax.block_until_ready(pending)
    return elapsed / calls / 1_000


def _timing(times: list[float], first: list[float]) -> Timing:
    ratios = [time / floor for time, floor in zip(times, first, strict=True)]
    us = statistics.median(times)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Timing(us, us / statistics.median(first), (low, middle, high))


def single_calls(call: Callable[[], Any], count: int, prepare: Callable[[], Any] | None = None) -> list[float]:
    """Sorted durations of single calls, in microseconds of wall time; ``prepare`` runs before each, untimed."""
    durations = []
    for number in range(count):
        if prepare is not None:
            prepare()
        start = time.perf_counter_ns()
        pending = call()
        durations.append((time.perf_counter_ns() - start) / 1_000)
        if number % 16 == 0:
            jax.block_until_ready(pending)
    return sorted(durations)


@contextlib.contextmanager
def pinned_thread() -> Iterator[None]:
    """Keep the calling thread on one core, where the system can; JAX's own threads stay free."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        yield
        return
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def fit_line(sizes: Sequence[int], times: Sequence[float]) -> tuple[float, float]:
    """Fixed cost and cost per array, by least squares weighted with 1/time, so that small sizes count as much."""
    weights = [1 / time**2 for time in times]
    total = sum(weights)
    mean_n = sum(w * n for w, n in zip(weights, sizes, strict=True)) / total
    mean_t = sum(w * t for w, t in zip(weights, times, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, n in zip(weights, sizes, strict=True))
    if not spread:
        return mean_t, 0.0
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, n, t in zip(weights, sizes, times, strict=True)) / spread
    return mean_t - slope * mean_n, slope
