"""Memory: the peak of a training step that owns large arrays, beside plain JAX, each in a fresh process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from .table import Table

ARRAYS = 9


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table: megabytes above what the process held before the first step."""
    megabytes = 1 if quick else 32
    table = Table(
        f"memory: peak of five steps that rewrite {ARRAYS} arrays of {megabytes} MB each",
        ["contender", "peak MB", "relative to plain JAX", "live MB afterwards"],
    )
    for donate in (True,) if quick else (False, True):
        first = 0.0
        for name in ("jax", "plait"):
            arguments = [name, str(megabytes), str(int(donate))]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.memory", *arguments], capture_output=True, text=True, check=True
            )
            peak, live = json.loads(done.stdout)
            first = first or peak
            table.rows.append(
                [f"{name}, {'donated' if donate else 'not donated'}", peak, peak / first if first else "-", live]
            )
    yield table


def _measure(name: str, megabytes: int, donate: bool) -> tuple[float, float]:
    import jax
    import jax.numpy as jnp

    import plait

    shape = (megabytes * 2**18,)
    arrays = [jnp.ones(shape) for _ in range(ARRAYS)]
    options: dict[str, Any] = {"donate_argnums": 0} if donate else {}
    jax.block_until_ready(arrays)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name == "jax":
        plain_step = jax.jit(lambda values: [value * 0.5 for value in values], **options)
        for _ in range(5):
            arrays = plain_step(arrays)
            jax.block_until_ready(arrays)
    else:
        model = plait.Dict({f"v{i}": plait.Param(array) for i, array in enumerate(arrays)})
        del arrays

        def halve(model: Any) -> None:
            for variable in model.values():
                variable.value = variable.value * 0.5

        step = plait.jit(halve, **options)
        for _ in range(5):
            step(model)
            jax.block_until_ready([variable.value for variable in model.values()])
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1_024
    return peak, sum(array.nbytes for array in jax.live_arrays()) / 2**20


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")))
