"""Reads any folder that Orbax wrote: its pytree of arrays, as NumPy arrays on the host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import CheckpointError
from ..util.files import check_files
from .layout import METADATA
from .plain import check_size
from .reading import bytes_of, raise_interrupt

STEP = "_CHECKPOINT_METADATA"  # in a folder whose items belong together


def load_orbax_tree(path: Path) -> Mapping[str, Any]:
    """The pytree in an Orbax folder as nested dicts and lists of NumPy arrays.

    Args:
        path: a folder that Orbax wrote, or one step of a ``CheckpointManager``. The trees of a step with several items
            are returned by the names of the items; items that are no trees of arrays are left out.

    Raises:
        CheckpointError: the folder holds trees that are no items of one step, has more bytes than the machine's memory,
            or cannot be read.
    """
    import orbax.checkpoint as ocp

    path = path.absolute()
    items = _items(path)
    place = path
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            trees: dict[Path, Any] = {}
            for place in items:
                check_files(place)
                described: Any = checkpointer.metadata(place)
                trees[place] = described.item_metadata.tree
            size = sum(bytes_of(leaf) for leaf in jax.tree.leaves(list(trees.values())) if hasattr(leaf, "shape"))
            check_size(items[0] if len(items) == 1 else path, size, None, do="write it again, in several parts")
            found: dict[str, Any] = {}
            for place, tree in trees.items():
                wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
                found[place.name] = checkpointer.restore(place, args=ocp.args.PyTreeRestore(restore_args=wanted))
            return found if len(items) > 1 else found[place.name]
    except CheckpointError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many builtin types
        raise_interrupt(error)
        raise CheckpointError(
            "the Orbax checkpoint is incomplete or damaged",
            at=str(place),
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300],
            expected="a folder as Orbax wrote it",
            do="use another step, or write it again",
        ) from error


def _items(path: Path) -> list[Path]:
    """The folders of the trees."""
    if (path / METADATA).is_file():
        return [path]
    items = sorted(file.parent for file in path.glob(f"*/{METADATA}"))
    if len(items) > 1 and not (path / STEP).is_file():
        raise CheckpointError(
            "the folder holds several Orbax trees",
            at=str(path),
            found=", ".join(item.name for item in items),
            expected="one of them, or a step of a CheckpointManager",
            do=f"pass one of them: {str(items[0])!r}",
        )
    return items
