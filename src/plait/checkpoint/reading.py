"""Reads the values of a checkpoint, using little memory in addition to the values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from ..errors import CheckpointError, PlaitError
from .layout import ARRAYS, staying
from .leaf_descriptions import Description, from_array, is_in_arrays, to_target

# Arrays without a sharding arrive on the host and are copied from there. They are read in groups of about this many
# bytes, so that there is never a second copy of all of them.
GROUP = 64 << 20
# Arrays with a sharding are read directly to their devices; this limits the bytes that are being read at the same time.
UNDER_WAY = 256 << 20


def read_values(source: Path, leaves: Mapping[str, Description], likes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these leaves of a checkpoint by their stored names, in the order of ``leaves``.

    Args:
        likes: for each leaf, the value that is replaced; it determines dtype, sharding, and whether to return a NumPy
            array.

    Raises:
        ArgumentError: a sharding does not divide its shape.
    """
    targets = {name: to_target(likes[name], name) for name, leaf in leaves.items() if is_in_arrays(leaf)}
    values = {name: None if name in targets else from_array(None, leaf, likes[name]) for name, leaf in leaves.items()}
    if targets:
        for name, array in read_arrays(source / ARRAYS, targets):
            values[name] = from_array(array, leaves[name], likes[name])
    return values


def read_arrays(path: Path, targets: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The stored arrays of these names, each with the sharding and dtype of its target.

    Raises:
        CheckpointError: the checkpoint was removed meanwhile.
    """
    import orbax.checkpoint as ocp

    # Orbax refuses an array that is as large as its limit, or larger.
    at_once: Any = max(UNDER_WAY, 1 + max(map(bytes_of, targets.values()))) / 1e9
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(restore_concurrent_gb=at_once)) as checkpointer:
        for group in groups(targets.items()):
            arguments = ocp.checkpoint_utils.construct_restore_args(group)
            wanted = ocp.args.PyTreeRestore(item=group, restore_args=arguments, partial_restore=True)
            with refused_if_damaged(path.parent), staying(path.parent):
                found = checkpointer.restore(path, args=wanted)
                for name, target in group.items():
                    if not hasattr(found[name], "__array__") or found[name].shape != target.shape:
                        raise ValueError(f"{name} is {found[name]!r:.80}, but its manifest says shape {target.shape}")
            for name in group:
                yield name, found.pop(name)


@contextlib.contextmanager
def refused_if_damaged(path: Path) -> Iterator[None]:
    """Inside ``with``, what Orbax and TensorStore raise about files that they cannot read becomes plait's error.

    Raises:
        CheckpointError: also if the checksums of the checkpoint are right.
    """
    try:
        yield
    except (PlaitError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # of many kinds
        raise_interrupt(error)
        raise CheckpointError(
            "the arrays of the checkpoint cannot be read",
            at=str(path),
            found=f"{type(error).__name__}: {error!s:.300}",
            expected="arrays as Orbax writes them, at a path in UTF-8",
            do="restore another checkpoint, or move it to another path",
        ) from error


def raise_interrupt(error: BaseException) -> None:
    """Raise the ``KeyboardInterrupt`` that led to an error, if one did: Orbax's tasks turn it into others."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__cause__ or cause.__context__


def groups(targets: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Groups of targets: all with a sharding together, and the others by size."""
    placed: dict[str, Any] = {}
    group: dict[str, Any] = {}
    size = 0
    for name, target in targets:
        if isinstance(target, jax.ShapeDtypeStruct) and target.sharding is not None:
            placed[name] = target
            continue
        if group and size + bytes_of(target) > GROUP:
            yield group
            group, size = {}, 0
        group[name] = target
        size += bytes_of(target)
    yield from filter(None, (group, placed))


def bytes_of(array: Any) -> int:
    """The size of an array or ``ShapeDtypeStruct`` in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize
