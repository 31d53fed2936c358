"""Reads any folder that Orbax wrote: its pytree of arrays, as NumPy arrays on the host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import CheckpointError
from .layout import METADATA
from .plain import check_size
from .reading import bytes_of


def load_orbax_tree(path: Path) -> Mapping[str, Any]:
    """The pytree in an Orbax folder as nested dicts and lists of NumPy arrays.

    Args:
        path: a folder that Orbax wrote, or one step of a ``CheckpointManager`` that has one item.

    Raises:
        CheckpointError: the folder holds several items, has more bytes than the machine's memory, or cannot be read.
    """
    import orbax.checkpoint as ocp

    place = _item(path.absolute())
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            described: Any = checkpointer.metadata(place)
            tree = described.item_metadata.tree
            size = sum(bytes_of(leaf) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape"))
            check_size(place, size, None, do="write it again, in several parts")
            wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return checkpointer.restore(place, args=ocp.args.PyTreeRestore(restore_args=wanted))
    except CheckpointError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many builtin types
        raise CheckpointError(
            "the Orbax checkpoint is incomplete or damaged",
            at=str(place),
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300],
            expected="a folder as Orbax wrote it",
            do="use another step, or write it again",
        ) from error


def _item(path: Path) -> Path:
    if (path / METADATA).is_file():
        return path
    items = sorted(file.parent for file in path.glob(f"*/{METADATA}"))
    if len(items) != 1:
        raise CheckpointError(
            "the folder holds several Orbax items",
            at=str(path),
            found=", ".join(item.name for item in items),
            expected="the folder of one item",
            do=f"pass one of them: {str(items[0])!r}",
        )
    return items[0]
