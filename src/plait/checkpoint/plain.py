"""Reads a checkpoint without the program that wrote it: its values as a nested state, and its manifest."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..core.states.state import from_flat_state
from ..core.variables.filters import to_predicate
from ..errors import CheckpointError, GraphError
from ..typing import FilterLiteral
from ..util.files import given_path, memory
from ..util.notices import warn_nothing_selected
from ..util.paths import describe_path, parse_path
from .layout import ARRAYS, Manifest, manifest_at
from .leaf_descriptions import abstract_key_data, is_in_arrays
from .orbax import check_whole_together
from .reading import bytes_of, groups, read_arrays, read_values
from .stored import StoredArray


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a checkpoint; its arrays are not checked.

    Raises:
        CheckpointError: the folder is not a plait checkpoint.

    Example:
        >>> path = plait.checkpoint.save("run/step-1", plait.Param(jnp.ones(2)), step=1)
        >>> plait.checkpoint.read_manifest(path).step
        1
    """
    return manifest_at(given_path(path).absolute())


def load_state(path: str | os.PathLike[str], filter: FilterLiteral = ..., *, limit: int | None = None) -> Any:
    """The values of a checkpoint, without the classes of the saved objects.

    Args:
        path: a folder that ``save`` wrote.
        filter: selects leaves by path: a function of path and leaf, or a literal such as ``PathContains("model")``.
            The types of variables are not stored, so ``plait.Param`` selects nothing.
        limit: the maximum number of bytes to read; ``None`` means the machine's memory.

    Returns:
        A ``State`` of NumPy arrays, random keys and Python numbers, nested by the paths of the leaves; for a checkpoint
        of one variable, its value. Dtypes that NumPy lacks, such as bfloat16, come from ``ml_dtypes``.

    Raises:
        CheckpointError: the folder is not an intact checkpoint, or its leaves exceed ``limit``.

    Warns:
        NothingSelectedWarning: the filter selects no leaf.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> path = plait.checkpoint.save("run/step-1", {"model": model}, step=1)
        >>> plait.checkpoint.load_state(path)["model"]["bias"].tolist()
        [0.0, 0.0, 0.0]
    """
    source = given_path(path).absolute()
    manifest = manifest_at(source)
    predicate = to_predicate(filter)
    paths = {name: path_of_name(name) for name in manifest.leaves}
    shapes = {name: _shape(leaf) for name, leaf in manifest.leaves.items()}
    chosen = [name for name in manifest.leaves if predicate(paths[name], shapes[name])]
    if manifest.leaves and not chosen:
        warn_nothing_selected(
            "load_state",
            filter,
            [None] * len(shapes),
            at=str(source),
            so="so the state is empty",
            do="select by path, for example load_state(path, plait.PathContains('kernel')); "
            "a checkpoint does not store the types of variables",
        )
    in_arrays = [name for name in chosen if is_in_arrays(manifest.leaves[name])]
    check_size(source, sum(bytes_of(shapes[name]) for name in in_arrays), limit)
    check_whole_together(source)
    values = read_values(source, {name: manifest.leaves[name] for name in chosen}, shapes)
    if list(map(paths.get, values)) == [()]:
        return next(iter(values.values()))
    return from_flat_state({paths[name]: value for name, value in values.items()})


def stored_arrays(path: str | os.PathLike[str]) -> dict[Any, StoredArray]:
    """The arrays of a checkpoint by path, random keys as their data, read on demand.

    They are read in groups, in the order of the manifest, and the last group is cached. If they are used in that order,
    each is read once, and only one group is in memory.

    Raises:
        CheckpointError: the folder is not an intact checkpoint, or an array exceeds the machine's memory.
    """
    source = given_path(path).absolute()
    manifest = manifest_at(source)
    targets: dict[str, Any] = {}
    for name, description in manifest.leaves.items():
        if is_in_arrays(description):
            shape = _shape(description)
            targets[name] = shape if description["kind"] == "array" else abstract_key_data(shape)
            check_size(source, bytes_of(targets[name]), None)
    check_whole_together(source)
    groups = _Groups(source / ARRAYS, targets)
    found = {}
    for name, target in targets.items():
        dtype = np.dtype(target.dtype)
        found[path_of_name(name)] = StoredArray(tuple(target.shape), dtype, functools.partial(groups.read, name))
    return found


class _Groups:
    """Reads arrays in groups, and caches the last group."""

    def __init__(self, source: Path, targets: Mapping[str, Any]) -> None:
        self._source, self._targets = source, targets
        self._kept: tuple[int | None, dict[str, Any]] = (None, {})
        self._group_of = {name: number for number, group in enumerate(groups(targets.items())) for name in group}

    def read(self, name: str) -> np.ndarray:
        group = self._group_of[name]
        if self._kept[0] != group:
            self._kept = (None, {})  # freed before the next group is read
            wanted = {
                each: np.empty(t.shape, t.dtype) for each, t in self._targets.items() if self._group_of[each] == group
            }
            self._kept = (group, dict(read_arrays(self._source, wanted)))
        return np.asarray(self._kept[1][name])


def path_of_name(name: str) -> Any:
    """The path of a leaf, from its name in the manifest."""
    if name == describe_path(()):
        return ()
    try:
        return parse_path(name)
    except GraphError:  # a key that is not a literal, such as an enum member
        return (name,)


def _shape(description: Mapping[str, Any]) -> Any:
    """The described shape and dtype, without allocating memory."""
    if description["kind"] == "key":
        try:
            key = jax.eval_shape(lambda: jax.random.key(0, impl=description["impl"]))
        except ValueError as error:
            raise CheckpointError(
                "the checkpoint has random keys of an algorithm that JAX does not know",
                found=f"{description['impl']!r:.80}",
                expected="an algorithm of jax.random",
                do="register it first, as the program did that saved the checkpoint",
            ) from error
        return jax.ShapeDtypeStruct(description["shape"], key.dtype)
    if description["kind"] == "array":
        return np.broadcast_to(np.zeros((), description["dtype"]), description["shape"])
    return np.zeros(())


def check_size(source: Path, size: int, limit: int | None, *, do: str | None = None) -> None:
    """Raise if there are more bytes than the limit, by default the machine's memory, before any is allocated.

    Raises:
        CheckpointError: there are more bytes than may be read.
    """
    room = memory() if limit is None else limit
    if room is not None and size > room:
        raise CheckpointError(
            "the checkpoint has more bytes than may be read",
            at=str(source),
            found=f"{size:,} bytes, according to its manifest",
            expected=f"at most {room:,}",
            do=do
            or "read a part of it: load_state(path, filter); or, if you trust the file, load_state(path, limit=...)",
        )
