"""What the agreement of several processes adds to each step of ``fit``.

    plait launch --processes 2 --devices 1 -- python -m benchmarks.agreement

Each round runs the same steps with the agreement, and before and after that without it, where a process would not know
of the others; the ratio is that to the mean of the two. The first and last steps are left out, so what happens once in
a run does not count.
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
from plait.training import agreement, fit, loop

STEPS, ROUNDS, EDGE = 200, 9, 20


class Model(plait.Module):
    """A matrix."""

    def __init__(self, size: int) -> None:
        self.weight = plait.Param(jnp.ones((size, size)) / size)


def measure(size: int, mesh: Any) -> float:
    """Milliseconds of a step."""
    batch = jax.make_array_from_callback(
        (8 * mesh.size, size), NamedSharding(mesh, PartitionSpec("data")), lambda place: np.ones((8, size), np.float32)
    )
    times: list[float] = []

    @plait.jit(donate=True)
    def train(model: Model, batch: jax.Array) -> jax.Array:
        model.weight.value = model.weight.value @ (jnp.eye(size) + 1e-9 * (batch.T @ batch))
        return model.weight.value.mean()

    def step(model: Model, batch: jax.Array) -> jax.Array:
        times.append(time.perf_counter())
        return train(model, batch)

    model = create_sharded(lambda: Model(size))
    fit(step, {"model": model}, [batch] * 100, steps=STEPS, log_every=100, show=False)
    return (times[-EDGE] - times[EDGE]) / (len(times) - 2 * EDGE) * 1e3


def main(size: int = 128) -> None:
    connect_processes()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    together = loop.Together
    without: Any = lambda when_stuck, begun: agreement.Alone()
    ratios, steps = [], []
    with jax.set_mesh(mesh):
        for number in range(ROUNDS + 1):
            found = []
            for chosen in (without, together, without):
                loop.Together = chosen
                found.append(measure(size, mesh))
            if number:  # the first one compiles
                steps.append((found[0] + found[2]) / 2)
                ratios.append(found[1] / steps[-1])
    if jax.process_index() == 0:
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"a step of {statistics.median(steps):.2f} ms: {middle:.3f} of that ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
