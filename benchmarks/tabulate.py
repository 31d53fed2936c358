"""``plait.tabulate`` of abstract transformers, beside lowering the same call, which is the part of it that is JAX's.

Each turn is a process of its own: its first call loads what JAX and rich load once. The later ones are medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from .table import Table

# Blocks and width: about a billion parameters each, without an embedding.
MODELS = ((16, 2304), (20, 2048), (48, 1312))


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table, of wall times."""
    table = Table(
        "a table of an abstract model, with its costs: wall time",
        ["blocks, width", "parameters", "first call, s", "later calls, s", "lowering, s"],
    )
    for blocks, width in ((2, 32),) if quick else MODELS:
        command = [sys.executable, "-m", f"{__package__}.tabulate", str(blocks), str(width)]
        turns = [_times(command) for _ in range(1 if quick else 5)]
        medians = [statistics.median(turn[name] for turn in turns) for name in ("first", "later", "lowering")]
        table.rows.append([f"{blocks}, {width}", f"{turns[0]['parameters']:,}", *medians])
    yield table


def _times(command: list[str]) -> dict[str, float]:
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(blocks: int, width: int) -> dict[str, float]:
    """The times of this process."""
    import jax
    import jax.numpy as jnp

    import plait

    class Block(plait.Module):
        def __init__(self, rngs: plait.Rngs) -> None:
            self.norm1, self.norm2 = (plait.LayerNorm(width, rngs=rngs) for _ in range(2))
            self.attention = plait.MultiHeadAttention(16, width, decode=False, rngs=rngs)
            self.up, self.down = plait.Linear(width, 4 * width, rngs=rngs), plait.Linear(4 * width, width, rngs=rngs)
            self.dropout = plait.Dropout(0.1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.dropout(self.attention(self.norm1(x)))
            return x + self.dropout(self.down(plait.gelu(self.up(self.norm2(x)))))

    model = plait.eval_shape(lambda: plait.Sequential(*[Block(plait.Rngs(0)) for _ in range(blocks)]))
    x = jax.ShapeDtypeStruct((8, 1024, width), jnp.float32)

    def timed(call: Any) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    # A new function each time, so that JAX traces it again.
    calls = [timed(lambda: plait.tabulate(model, x)) for _ in range(4)]
    lowering = [timed(lambda: plait.jit(lambda model, x: model(x)).lower(model, x)) for _ in range(3)]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(plait.state(model, plait.Param)))
    return {
        "parameters": parameters,
        "first": calls[0],
        "later": statistics.median(calls[1:]),
        "lowering": statistics.median(lowering),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
