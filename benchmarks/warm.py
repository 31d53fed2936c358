"""Warm start: seconds from the start of a process to its first loss, compiled, with JAX's cache, and with ``cache=``.

Each process imports JAX, Optax and plait, makes a transformer and its optimizer, and takes a training step. What is
compared with the floor is importing and the first step together; making the model is the same for all and shown apart.
The floor is what no start can do without: the imports, loading the executable, and one step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .table import Table

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 1.3
KINDS = ("compiled anew", "JAX's compilation cache", "plait's cache=")


def child(folder: str, blocks: int, kind: str) -> None:
    """One process: prints its seconds as JSON."""
    start = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import optax

    import plait

    plait.Optimizer  # noqa: B018 - which imports the training part
    imported = time.perf_counter()
    from . import warm_model

    model = warm_model.Model(blocks, plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)
    tokens = jnp.arange(4 * 64).reshape(4, 64) % 128
    jax.block_until_ready(plait.state(model))
    step = plait.jit(warm_model.step, donate=True, cache=folder if kind == KINDS[2] else None)
    built = time.perf_counter()
    loss = float(step(model, optimizer, tokens))
    first = time.perf_counter()
    step(model, optimizer, tokens).block_until_ready()
    second = time.perf_counter()
    found = {
        "imports": imported - start,
        "model": built - imported,
        "first step": first - built,
        "step": second - first,
        "loss": loss.hex(),
    }
    if kind == KINDS[2]:
        found["load"], found["loaded"] = _load(Path(folder)), step.jitted_fn.programs.counts["loaded"]
    print(json.dumps(found))


def _load(folder: Path) -> float:
    """Seconds to read the program's bytes and give them to the client of the device."""
    import jax
    from jaxlib import xla_client

    (file,) = folder.glob("*.program")
    start = time.perf_counter()
    binary = file.read_bytes().split(b"\n", 2)[2]
    client = jax.devices()[0].client
    client.deserialize_executable(binary, executable_devices=xla_client.DeviceList(tuple(jax.devices()[:1])))
    return time.perf_counter() - start


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table for each depth."""
    for blocks in (1,) if quick else (6, 24):
        yield _table(blocks, rounds=1 if quick else 5)


def _table(blocks: int, rounds: int) -> Table:
    columns = [
        "first step",
        "imports s",
        "model s",
        "first step s",
        "a step s",
        "imports and first step, over the floor",
    ]
    table = Table(f"start of a process, {blocks} blocks", columns)
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for number in range(rounds + 1):
            for kind in KINDS:
                measured = _measured(Path(folder), blocks, kind)
                if number:  # the first ones fill the caches
                    found[kind].append(measured)
        assert all(each["loaded"] == 1 for each in found[KINDS[2]])
        assert len({each["loss"] for kind in KINDS for each in found[kind]}) == 1
        floors = [each["imports"] + each["load"] + each["step"] for each in found[KINDS[2]]]
        for kind in KINDS:
            medians = [statistics.median(each[name] for each in found[kind]) for name in
                       ("imports", "model", "first step", "step")]  # fmt: skip
            ratios = [
                (each["imports"] + each["first step"]) / floor for each, floor in zip(found[kind], floors, strict=True)
            ]
            table.rows.append([kind, *medians, statistics.median(ratios)])
        load = statistics.median(each["load"] for each in found[KINDS[2]])
        table.remarks.append(f"Loading the executable alone: {load:.3f} s. Budget of the last row: {BUDGET}.")
    return table


def _measured(folder: Path, blocks: int, kind: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if kind == KINDS[1]:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    programs = str(folder / "programs")
    command = [sys.executable, "-c", f"from benchmarks import warm; warm.child({programs!r}, {blocks}, {kind!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])
