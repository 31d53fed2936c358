"""Warm start: seconds from the start of a process to its first loss, compiled and with each of the caches.

Each process imports JAX, Optax and the library, makes a transformer and its optimizer, and takes a training step; all
of it counts. The floor is what no start can do without: the imports, reading the executable of the step, and one step.
Flax runs the same program with JAX's cache. Byte code is kept, as it is for an installed package.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .table import Table

ROOT = Path(__file__).resolve().parents[1]
BUDGET, BUDGET_OF_JAX = 1.15, 0.6
ANEW, OF_JAX, OF_FUNCTION, OF_ALL, OF_FLAX = (
    "compiled anew", "JAX's compilation cache", "plait's cache=", "PLAIT_CACHE", "Flax, JAX's compilation cache",
)  # fmt: skip
KINDS = (ANEW, OF_JAX, OF_FUNCTION, OF_ALL, OF_FLAX)


def child(folder: str, blocks: int, kind: str) -> None:
    """One process: prints its seconds as JSON."""
    start = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import optax

    if kind == OF_FLAX:
        from flax import nnx as library
    else:
        import plait as library

    library.Optimizer  # noqa: B018 - which imports the training part
    imported = time.perf_counter()
    warm_model = _model_of(kind)
    model = warm_model.Model(blocks, library.Rngs(0))
    optimizer = library.Optimizer(model, optax.adam(1e-3), wrt=library.Param)
    tokens = jnp.arange(4 * 64).reshape(4, 64) % 128
    jax.block_until_ready(library.state(model))
    options: dict[str, Any] = {"cache": folder} if kind == OF_FUNCTION else {}
    if kind == OF_FLAX:
        options = {"donate_argnums": (0, 1)}
    else:
        options["donate"] = True
    step = library.jit(warm_model.step, **options)
    built = time.perf_counter()
    loss = float(step(model, optimizer, tokens))
    first, cpu = time.perf_counter(), time.process_time()
    step(model, optimizer, tokens).block_until_ready()
    second = time.perf_counter()
    found: dict[str, Any] = {
        "imports": imported - start,
        "model": built - imported,
        "first step": first - built,
        "step": second - first,
        "to the first loss": first - start,
        "CPU": cpu,
        "loss": loss.hex(),
    }
    if kind in (OF_FUNCTION, OF_ALL):
        found["load"], found["loaded"] = _load(Path(folder)), step.jitted_fn.stores().counts["loaded"]
    print(json.dumps(found))


def _model_of(kind: str) -> Any:
    """The module of the model; for Flax the same text with its names."""
    from . import warm_model

    if kind != OF_FLAX:
        return warm_model
    text = (
        Path(warm_model.__file__)
        .read_text(encoding="utf-8")
        .replace("import plait\n", "from flax import nnx as plait\n")
    )
    flax_model = types.ModuleType("flax_model")
    exec(compile(text, "flax_model.py", "exec"), vars(flax_model))
    return flax_model


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


def run(*, quick: bool = False, blocks: Sequence[int] = (6, 12, 24), rounds: int = 5) -> Iterator[Table]:
    """One table for each depth."""
    for depth in (1,) if quick else blocks:
        yield _table(depth, rounds=1 if quick else rounds)


def _table(blocks: int, rounds: int) -> Table:
    columns = [
        "first step", "imports s", "model s", "first step s", "a step s", "to the first loss s", "over the floor",
        "over JAX's cache", "CPU s", "CPU, over JAX's cache",
    ]  # fmt: skip
    table = Table(f"start of a process, {blocks} blocks", columns)
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        storing: dict[str, float] = {}
        for number in range(rounds + 1):
            for kind in KINDS:
                measured = _measured(Path(folder), blocks, kind)
                if number:
                    found[kind].append(measured)
                else:  # the first ones fill the caches
                    storing[kind] = measured["first step"]
        assert all(each["loaded"] == 1 for kind in (OF_FUNCTION, OF_ALL) for each in found[kind])
        assert len({each["loss"] for kind in KINDS[:4] for each in found[kind]}) == 1
        floors = [each["imports"] + each["load"] + each["step"] for each in found[OF_ALL]]
        of_jax, cpu_of_jax = ([each[name] for each in found[OF_JAX]] for name in ("to the first loss", "CPU"))
        for kind in KINDS:
            medians = [statistics.median(each[name] for each in found[kind]) for name in
                       ("imports", "model", "first step", "step", "to the first loss", "CPU")]  # fmt: skip
            ratios = [
                statistics.median(each[name] / other for each, other in zip(found[kind], others, strict=True))
                for name, others in (("to the first loss", floors), ("to the first loss", of_jax), ("CPU", cpu_of_jax))
            ]
            table.rows.append([kind, *medians[:-1], *ratios[:2], medians[-1], ratios[2]])
        load = statistics.median(each["load"] for each in found[OF_ALL])
        table.remarks.append(
            f"Reading the executable alone: {load:.3f} s. Budget of PLAIT_CACHE: {BUDGET} and {BUDGET_OF_JAX}. The "
            f"first step of the process that stores: {storing[OF_ALL] / storing[ANEW]:.2f} of a compiled one."
        )
    return table


def _measured(folder: Path, blocks: int, kind: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"PLAIT_ADVISE_STACKS": "0", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if kind in (OF_JAX, OF_FLAX):
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    programs = str(folder / ("all" if kind == OF_ALL else "programs"))
    if kind == OF_ALL:
        environment["PLAIT_CACHE"] = programs
    command = [sys.executable, "-c", f"from benchmarks import warm; warm.child({programs!r}, {blocks}, {kind!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])
