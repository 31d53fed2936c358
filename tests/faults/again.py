"""Two processes of which one cannot write its first checkpoint: ``python -m tests.faults.again FOLDER WHERE PROCESS``.

All catch the error and save again, as it advises.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.checkpoint import Checkpoints, orbax
from plait.errors import CheckpointError
from plait.partitioning import connect_processes


def main(folder: Path, where: str, process: int) -> None:
    connect_processes()
    act = getattr(orbax.Saving, where)

    def fail_once(saving: orbax.Saving) -> None:
        if saving.manifest.step == 1 and jax.process_index() == process:
            raise OSError(28, "No space left on device")
        act(saving)

    setattr(orbax.Saving, where, fail_once)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec("data"))
    weight = jax.make_array_from_callback((8,), place, lambda part: np.ones(8, np.float32)[part])
    with Checkpoints(folder / "checkpoints") as checkpoints:
        try:
            checkpoints.save(1, plait.Param(weight))
            checkpoints.wait()
        except CheckpointError as error:
            print(f"told: {error.parts['found']}", flush=True)
        checkpoints.save(2, plait.Param(weight))
        checkpoints.wait()
        print("saved", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
