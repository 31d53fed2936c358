"""Checkpoints: saving and restoring on one device, beside Orbax's own checkpointer, which writes the arrays of both."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .table import Table

ARRAYS = 32
TURNS = 11


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table: seconds of wall time, and their ratios within each turn."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp

    import plait

    draw = np.random.default_rng(0).standard_normal
    size = 16 if quick else 1024
    state = {f"w{i}": jnp.asarray(draw((size, 2 * size), dtype=np.float32)) for i in range(ARRAYS)}
    model = plait.Dict({name: plait.Param(array) for name, array in state.items()})
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)

    def orbax_save(path: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, state)

    def orbax_restore(path: Path) -> Any:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path, like)

    def save(path: Path) -> None:
        plait.checkpoint.save(path, model)

    def restore(path: Path) -> Any:
        plait.checkpoint.restore(path, model)
        return [variable[...] for variable in model.values()]

    seconds: dict[str, list[float]] = {"save, Orbax": [], "save": [], "restore, Orbax": [], "restore": []}
    for _ in range(2 if quick else TURNS):
        folder = Path(tempfile.mkdtemp())
        for name, act, path in (
            ("save, Orbax", orbax_save, folder / "orbax"),
            ("save", save, folder / "plait"),
            ("restore, Orbax", orbax_restore, folder / "orbax"),
            ("restore", restore, folder / "plait"),
        ):
            seconds[name].append(_timed(act, path))
        shutil.rmtree(folder)
    megabytes = sum(array.nbytes for array in state.values()) / 2**20
    table = Table(f"checkpoint: {ARRAYS} arrays, {megabytes:g} MiB", ["", "seconds", "relative to Orbax"])
    for name, found in seconds.items():
        others = seconds[name if "Orbax" in name else f"{name}, Orbax"]
        ratio = statistics.median(own / other for own, other in zip(found, others, strict=True))
        table.rows.append([name, statistics.median(found), ratio])
    yield table


def _timed(act: Callable[[Path], Any], path: Path) -> float:
    import jax

    begun = time.perf_counter()
    jax.block_until_ready(act(path))
    return time.perf_counter() - begun
