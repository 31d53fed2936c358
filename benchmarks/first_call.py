"""The first call of a program: importing, building, tracing and loading a compiled step, each in a fresh process.

Both contenders train the transformer of ``transformer.py`` by one step of SGD, with the persistent compilation cache of
JAX filled by a run before. Byte code is written by that run too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .table import Table

PARTS = ("import", "build", "trace and lower", "compile, from the cache", "call", "all")
PROGRAM = """
import json, sys, time
marks = [time.process_time()]
def done():
    marks.append(time.process_time())
library, blocks = sys.argv[1], int(sys.argv[2])
import jax, jax.numpy as jnp
if library == "plait":
    import plait
done()
from benchmarks.transformer import LENGTH, WIDTH, block, block_class
began = time.process_time() - marks[-1]  # what this file imports
x = jnp.ones((2, LENGTH, WIDTH))
init = jax.nn.initializers.lecun_normal()
if library == "plait":
    Block, rngs = block_class(plait), plait.Rngs(0)
    model = plait.List([Block(rngs) for _ in range(blocks)])
    def forward(model, x):
        for each in model:
            x = each(x)
        return (x * x).mean()
    @plait.jit
    def step(model, x):
        loss, grads = plait.value_and_grad(forward)(model, x)
        plait.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, plait.state(model, plait.Param), grads))
        return loss
else:
    def linear(key, i, o):
        return {"kernel": init(key, (i, o)), "bias": jnp.zeros(o)}
    def parameters(key):
        keys = jax.random.split(key, 6)
        square = {name: linear(keys[i], WIDTH, WIDTH) for i, name in enumerate(("q", "k", "v", "out"))}
        mlp = {"up": linear(keys[4], WIDTH, 4 * WIDTH), "down": linear(keys[5], 4 * WIDTH, WIDTH)}
        norms = {f"norm{i}": {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)} for i in (1, 2)}
        return {**square, **mlp, **norms}
    model = [parameters(key) for key in jax.random.split(jax.random.key(0), blocks)]
    def forward(model, x):
        for each in model:
            x = block(each, x)
        return (x * x).mean()
    @jax.jit
    def step(model, x):
        loss, grads = jax.value_and_grad(forward)(model, x)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, model, grads)
jax.block_until_ready(x)
done()
lowered = step.lower(model, x)
done()
compiled = lowered.compile()
done()
jax.block_until_ready(compiled(model, x))
done()
parts = [after - before for before, after in zip(marks, marks[1:])]
parts[1] -= began
print(json.dumps([*parts, sum(parts)]))
"""


def seconds(library: str, blocks: int, environment: dict[str, str]) -> list[float]:
    """CPU time of each part, in a fresh process."""
    command = [sys.executable, "-c", PROGRAM, library, str(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table."""
    blocks = 1 if quick else 12
    table = Table(
        f"the first call of a program: a training step of {blocks} blocks, CPU time",
        ["part", "plain JAX ms", "plait ms", "plait / plain"],
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPYCACHEPREFIX": os.path.join(folder, "code"),
            "JAX_COMPILATION_CACHE_DIR": os.path.join(folder, "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        times: dict[str, list[list[float]]] = {"jax": [], "plait": []}
        for number in range(2 if quick else 9):
            for library, found in times.items():
                measured = seconds(library, blocks, environment)
                if number:  # the first one fills the caches
                    found.append(measured)
    for part, plain, ours in zip(
        PARTS, zip(*times["jax"], strict=True), zip(*times["plait"], strict=True), strict=True
    ):
        ratio = statistics.median(b / a for a, b in zip(plain, ours, strict=True))
        table.rows.append([part, 1_000 * statistics.median(plain), 1_000 * statistics.median(ours), ratio])
    yield table
