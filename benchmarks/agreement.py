"""What the agreement of several processes adds to each step of ``fit``.

    plait launch --processes 2 --devices 1 -- python -m benchmarks.agreement

Each round runs the same steps with the agreement, and before and after that without it, where a process would not know
of the others. Of each run the median step counts, so neither what happens once in it nor another program that takes the
core does. Two figures: the whole step, whose ratio needs a quiet machine, and what the loop does between two steps,
which is all that differs. Each step waits for its result: steps that are queued get in each other's way on the CPU, and
the agreement, which limits the queue, would seem to save time.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.partitioning import connect_processes, create_sharded
from plait.training import fit
from plait.training.loop import run as run_of_fit
from plait.training.loop.processes import agreement

STEPS, ROUNDS, EDGE = 200, 15, 20


class Model(plait.Module):
    """A matrix."""

    def __init__(self, size: int) -> None:
        self.weight = plait.Param(jnp.ones((size, size)) / size)


def measure(size: int, mesh: Any) -> tuple[float, float]:
    """Milliseconds of a step, and of what is between two steps."""
    batch = jax.make_array_from_callback(
        (8 * mesh.size, size), NamedSharding(mesh, PartitionSpec("data")), lambda place: np.ones((8, size), np.float32)
    )
    begun: list[float] = []
    ended: list[float] = []

    @plait.jit(donate=True)
    def train(model: Model, batch: jax.Array) -> jax.Array:
        model.weight.value = model.weight.value @ (jnp.eye(size) + 1e-9 * (batch.T @ batch))
        return model.weight.value.mean()

    def step(model: Model, batch: jax.Array) -> jax.Array:
        begun.append(time.perf_counter() * 1e3)
        loss = jax.block_until_ready(train(model, batch))
        ended.append(time.perf_counter() * 1e3)
        return loss

    model = create_sharded(lambda: Model(size))
    fit(step, {"model": model}, [batch] * 100, steps=STEPS, log_every=100, show=False)
    whole, between = np.diff(begun)[EDGE:-EDGE], (np.array(begun[1:]) - ended[:-1])[EDGE:-EDGE]
    return float(np.median(whole)), float(np.median(between))


def main(sizes: tuple[int, ...] = (128, 256)) -> None:
    connect_processes()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    together = run_of_fit.MultiProcess
    without: Any = lambda *hooks: agreement.SingleProcess()
    with jax.set_mesh(mesh):
        for size in sizes:
            ratios, steps, added = [], [], []
            for number in range(ROUNDS + 1):
                found = []
                for chosen in (without, together, without):
                    run_of_fit.MultiProcess = chosen
                    found.append(measure(size, mesh))
                if number:  # the first one compiles
                    (before, between_before), (whole, between), (after, between_after) = found
                    steps.append((before + after) / 2)
                    ratios.append(whole / steps[-1])
                    added.append(between - (between_before + between_after) / 2)
            if jax.process_index() == 0:
                step = statistics.median(steps)
                print(f"a step of {step:.2f} ms: {of(ratios)} of that as a whole; between two steps, ", end="")
                print(f"{of([1000 * each for each in added], 1)} µs more: {1 + statistics.median(added) / step:.3f}")


def of(figures: list[float], digits: int = 3) -> str:
    """The median, and the quartiles."""
    low, middle, high = (f"{each:.{digits}f}" for each in statistics.quantiles(figures, n=4))
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
