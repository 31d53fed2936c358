"""Objects of which each process has a copy: a checkpoint has that of process 0, so all begin equal."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ....checkpoint.leaf_descriptions import is_in_arrays, to_array
from ....checkpoint.orbax import described
from ....errors import CheckpointWarning
from ....partitioning.processes.all_processes import next_key, run_on_all, run_on_process_0
from ....partitioning.processes.key_value_store import gather
from ....util.notices import warn
from ....util.words import first_few


def warn_of_other_copies(objects: Mapping[str, Any]) -> None:
    """Warn of the values that are not those of process 0. All processes call it, before they restore a checkpoint.

    Raises:
        ArgumentTypeError: an object cannot be saved.
    """
    digests = run_on_all(lambda: _digests(objects))
    of_all: list[dict[str, int]] = [json.loads(text) for text in gather(next_key("copies"), json.dumps(digests))]
    run_on_process_0(lambda: _warn(of_all))


def _digests(objects: Mapping[str, Any]) -> dict[str, int]:
    """A checksum of each array of which this process has a copy of its own, by its name in checkpoints."""
    values, leaves, *_ = described(objects, {})
    found: dict[str, int] = {}
    for name, leaf in leaves.items():
        if is_in_arrays(leaf) and not isinstance(values[name], jax.ShapeDtypeStruct):
            array = to_array(values[name], name)
            if isinstance(array, np.ndarray):
                found[name] = zlib.crc32(array.tobytes())
    return found


def _warn(of_all: list[dict[str, int]]) -> None:
    first = of_all[0]
    others = [[name for name in first if name in each and each[name] != first[name]] for each in of_all]
    if any(others):
        where = [str(number) for number, names in enumerate(others) if names]
        warn(
            CheckpointWarning,
            "the processes of this run have copies with different values, and a checkpoint has those of process 0",
            at=first_few(list(dict.fromkeys(name for names in others for name in names)), 5),
            found=f"other values in process{'es' * (len(where) > 1)} {first_few(where, 4)}",
            expected="the same values in all processes, as a resumed run has",
            do="use one seed in all, plait.Rngs(0); for noise of its own in each process, "
            "jax.random.fold_in(rngs(), jax.process_index())",
        )
