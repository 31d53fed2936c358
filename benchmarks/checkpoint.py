"""Checkpoints beside Orbax's own checkpointer, which writes plait's arrays too, and safetensors beside the library and
``jax.device_put``: on one device, and on eight that the CPU emulates.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .scaling import in_fresh_process
from .table import Table

ARRAYS = 32
TURNS = 11
WEIGHTS = "weights.safetensors"

Seconds = list[float]  # of each turn
Pair = tuple[Seconds, Seconds]  # the other's, and plait's


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table: seconds of wall time, and their ratios within each turn, with the quartiles."""
    megabytes = ARRAYS * 4 * _size(quick) * 2 * _size(quick) / 2**20
    table = Table(
        f"checkpoint: {ARRAYS} arrays, {megabytes:g} MiB",
        ["", "seconds", "the other's", "relative to it", "lower quartile", "upper quartile"],
    )
    found: dict[str, Pair] = _one_device(quick)
    found |= in_fresh_process("benchmarks.checkpoint", str(int(quick)), devices=8)
    for name, (other, own) in found.items():
        ratios = [mine / theirs for theirs, mine in zip(other, own, strict=True)]
        lower, middle, upper = statistics.quantiles(ratios, n=4)
        table.rows.append([name, statistics.median(own), statistics.median(other), middle, lower, upper])
    yield table


def _one_device(quick: bool) -> dict[str, Pair]:
    import orbax.checkpoint as ocp

    import plait

    state = _state(quick)
    model = plait.Dict({name: plait.Param(array) for name, array in state.items()})

    def save(folder: Path) -> None:
        plait.checkpoint.save(folder / "plait", model)

    def orbax_save(folder: Path) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "orbax", state)

    class Background:
        """Two checkpointers that write in the background: a turn times until ``save`` returns."""

        def __init__(self) -> None:
            self.orbax = ocp.StandardCheckpointer()

        def other(self, folder: Path) -> None:
            self.orbax.save(folder / "orbax-background", state)

        def own(self, folder: Path) -> None:
            self.plait = plait.checkpoint.Checkpoints(folder / "run")
            self.plait.save(1, model)

    background = Background()
    seconds = _turns(
        {
            "save": (orbax_save, save),
            "save in the background, until it returns": (background.other, background.own),
            "restore": (_orbax_restore("orbax", state), _restore("plait", model)),
            "safetensors": _safetensors({name: array.sharding for name, array in state.items()}),
        },
        quick,
        after={
            background.other: background.orbax.wait_until_finished,
            background.own: lambda: background.plait.close(),
        },
    )
    background.orbax.close()
    return seconds


def _eight_devices(quick: bool) -> dict[str, Pair]:
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    import plait

    mesh = jax.make_mesh((8,), ("data",))
    rows, columns, copies = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in [("data",), (None, "data"), ()])
    state = {name: jax.device_put(array, rows) for name, array in _state(quick).items()}
    wanted = {name: jax.device_put(array, columns) for name, array in state.items()}
    model = plait.Dict({name: plait.Param(array) for name, array in wanted.items()})

    def prepare(folder: Path) -> None:
        plait.checkpoint.save(folder / "plait", plait.Dict({k: plait.Param(v) for k, v in state.items()}))
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "orbax", state)

    return _turns(
        {
            "8 devices: restore into another sharding": (_orbax_restore("orbax", wanted), _restore("plait", model)),
            "8 devices: safetensors, sharded by rows": _safetensors(dict.fromkeys(state, rows)),
            "8 devices: safetensors, sharded by columns": _safetensors(dict.fromkeys(state, columns)),
            "8 devices: safetensors, replicated": _safetensors(dict.fromkeys(state, copies)),
        },
        quick,
        prepare,
    )


def _size(quick: bool) -> int:
    return 16 if quick else 1024


def _state(quick: bool) -> dict[str, Any]:
    import jax.numpy as jnp
    import numpy as np

    draw, size = np.random.default_rng(0).standard_normal, _size(quick)
    return {f"w{i}": jnp.asarray(draw((size, 2 * size), dtype=np.float32)) for i in range(ARRAYS)}


def _orbax_restore(name: str, like: dict[str, Any]) -> Callable[[Path], Any]:
    import jax
    import orbax.checkpoint as ocp

    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)

    def restore(folder: Path) -> Any:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(folder / name, like)

    return restore


def _restore(name: str, model: Any) -> Callable[[Path], Any]:
    import plait

    def restore(folder: Path) -> Any:
        plait.checkpoint.restore(folder / name, model)
        return [variable[...] for variable in model.values()]

    return restore


def _safetensors(shardings: dict[str, Any]) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    import jax
    from safetensors.numpy import load_file

    import plait

    def other(folder: Path) -> Any:
        return {name: jax.device_put(array, shardings[name]) for name, array in load_file(folder / WEIGHTS).items()}

    def own(folder: Path) -> Any:
        arrays = plait.checkpoint.load_safetensors(folder / WEIGHTS)
        return {name: array.place(shardings[name]) for name, array in arrays.items()}

    return other, own


def _turns(
    pairs: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]],
    quick: bool,
    prepare: Callable[[Path], None] = lambda folder: None,
    after: dict[Any, Callable[[], None]] | None = None,
) -> dict[str, Pair]:
    """The seconds of each, one after the other in each turn, and the other one first in every second turn."""
    import plait

    seconds: dict[str, Pair] = {name: ([], []) for name in pairs}
    weights = _state(quick)
    for turn in range(2 if quick else TURNS):
        folder = Path(tempfile.mkdtemp())
        plait.checkpoint.save_safetensors(folder / WEIGHTS, weights)
        prepare(folder)
        for name, acts in pairs.items():
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds[name][which].append(_timed(acts[which], folder))
                (after or {}).get(acts[which], lambda: None)()
        shutil.rmtree(folder)
    return seconds


def _timed(act: Callable[[Path], Any], folder: Path) -> float:
    import jax

    begun = time.perf_counter()
    jax.block_until_ready(act(folder))
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(json.dumps(_eight_devices(sys.argv[1] == "1")))
