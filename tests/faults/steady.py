"""A program that calls jitted steps very often: run as ``python -m tests.faults.steady DISPATCHES MODELS``.

It prints JSON: for each fifth of the calls the memory, live arrays and objects after it, and the median time of a call.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import plait

FIFTHS = 5


class Net(plait.Module):
    """Two layers, statistics and dropout: all that a step may write."""

    def __init__(self, rngs: plait.Rngs) -> None:
        self.first = plait.Linear(4, 8, rngs=rngs)
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.dropout = plait.Dropout(0.5, rngs=rngs)
        self.last = plait.Linear(8, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.dropout(self.norm(self.first(x))))


def step(model: Net, optimizer: plait.Optimizer, x: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def resident() -> int:
    """Bytes of this process in memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def observed(times: int, once: Callable[[int], object]) -> dict[str, list[float]]:
    """What the process holds after each fifth of the calls, and how long a call took in it."""
    found: dict[str, list[float]] = {"bytes": [], "arrays": [], "objects": [], "microseconds": []}
    for fifth in range(FIFTHS):
        took = []
        for number in range(times // FIFTHS):
            begin = time.perf_counter()
            once(fifth * times + number)
            took.append(time.perf_counter() - begin)
        gc.collect()
        found["bytes"].append(resident())
        found["arrays"].append(len(jax.live_arrays()))
        found["objects"].append(len(gc.get_objects()))
        found["microseconds"].append(statistics.median(took) * 1e6)
    return found


def main(dispatches: int, models: int) -> None:
    x = jnp.linspace(-1, 1, 16).reshape(4, 4)
    model = Net(plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)
    jitted = plait.jit(step)
    jitted(model, optimizer, x)

    def short_lived(number: int) -> None:
        # A new model, a new optimizer and, now and then, a new jitted function.
        model = Net(plait.Rngs(number))
        jitted(model, plait.Optimizer(model, optimizer.tx, wrt=plait.Param), x)
        if number % 100 == 0:
            plait.jit(lambda model: model.last.kernel.sum())(model)

    print(
        json.dumps(
            {
                "dispatches": observed(dispatches, lambda _: jitted(model, optimizer, x)),
                "models": observed(models, short_lived),
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
