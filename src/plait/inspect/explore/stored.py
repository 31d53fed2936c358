"""The outline of files: checkpoints, exports and safetensors, read without the model's class.

Only arrays and JSON are read, after the checks of their own readers; nothing in a file is run. A value is read when the
page needs its statistics, and is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

import jax
import numpy as np

from ...checkpoint.layout import MANIFEST, is_orbax, latest, manifest_at
from ...checkpoint.orbax_trees import load_orbax_tree
from ...checkpoint.plain import path_of_name, stored_arrays
from ...checkpoint.safetensors import is_safetensors, load_safetensors
from ...checkpoint.stored import StoredArray
from ...errors import CheckpointError
from ...export.formats import stablehlo_loader
from ...export.formats.descriptions import ReadableTensor, Tensor
from ...export.formats.manifest import read_manifest, refused_as_plait_does
from ...export.formats.table import Format, exports_at
from ...util.files import given_path
from ...util.paths import Path
from .outline import DEEPEST, LEAF, Call, Entry, Outline, outline_of_leaves

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")  # as Python writes it: 00 is a different name from 0


def outline_of_file(path: str | os.PathLike[str]) -> Outline:
    """The outline of what is at a path.

    Args:
        path: a checkpoint; a folder of checkpoints, of which the newest is read; an export, or a folder of one model's
            exports, of which StableHLO is preferred; a safetensors file or folder; a folder that Orbax wrote.

    Raises:
        CheckpointError: the path has none of these, or it is incomplete or damaged.
        ExportError: the export is incomplete or was changed.
    """
    place = given_path(path)
    if (place / MANIFEST).is_file():
        return _checkpoint(place)
    exports = exports_at(place)
    if exports:
        row, where = exports[0]
        return _stablehlo(where) if row.name == "stablehlo" else _described(row, where)
    if is_safetensors(place):
        return _arrays(place, "safetensors", load_safetensors(place))
    if place.is_dir():
        newest = latest(place)
        if newest is not None:
            return _checkpoint(newest)
        if is_orbax(place):
            return _arrays(place, "Orbax checkpoint", _flat(load_orbax_tree(place)))
    raise CheckpointError(
        "there is nothing here that can be explored",
        at=str(place),
        found="nothing"
        if not place.exists()
        else "a folder of other files"
        if place.is_dir()
        else "a file of another kind",
        expected="a checkpoint or a folder of them, an export, or a .safetensors file",
        do="plait explore runs/digits/checkpoints",
    )


def _checkpoint(place: FilePath) -> Outline:
    manifest = manifest_at(place.absolute())
    arrays = stored_arrays(place)
    leaves: dict[Path, Entry] = {}
    for name, description in manifest.leaves.items():
        path = path_of_name(name)
        leaves[path] = _leaf(path, arrays.get(path))
        if description["kind"] == "key":
            leaves[path].dtype, leaves[path].is_key = f"key<{description['impl']}>", True
            leaves[path].shape = tuple(description["shape"])
        elif description["kind"] != "array":
            leaves[path].dtype, leaves[path].attributes = description["kind"], {"value": str(description["value"])}
        elif path not in arrays:
            leaves[path].dtype, leaves[path].shape = description["dtype"], tuple(description["shape"])
    facts = {} if manifest.step is None else {"step": str(manifest.step)}
    facts |= {name: str(value) for name, value in {**manifest.metrics, **manifest.extra}.items()}
    return outline_of_leaves(place.name, "checkpoint", leaves, facts)


def _leaf(path: Path, array: Any) -> Entry:
    if array is None:
        return Entry(path, LEAF, why="stored without an array")
    entry = Entry(path, LEAF, dtype=str(array.dtype), shape=tuple(array.shape))
    entry.bytes = int(np.prod(entry.shape, dtype=np.int64)) * np.dtype(array.dtype).itemsize
    entry.read = lambda: np.asarray(array)
    return entry


def _stablehlo(place: FilePath) -> Outline:
    @functools.lru_cache(maxsize=1)  # values are read in the order of the files, and only one file is in memory
    def read(file: str) -> dict[str, np.ndarray]:
        with refused_as_plait_does(place):
            return stablehlo_loader.read_safetensors(stablehlo_loader.checked(place, manifest, file), file)

    manifest = read_manifest(place)
    arrays = {
        name: StoredArray(array.shape, array.dtype, lambda file=file, name=name: read(file)[name])
        for file in manifest.get("weight_files", ())
        for name, array in read(file).items()
    }
    outline = _arrays(place, "StableHLO bundle", arrays)
    outline.entries[0].calls = [
        Call(name, _shapes(chosen["inputs"]), _shapes(chosen["outputs"]))
        for name, chosen in manifest["signatures"].items()
    ]
    return outline


def _shapes(tensors: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(f"{each['name']}: {each['dtype']}[{', '.join(map(str, each['shape']))}]" for each in tensors)


def _described(row: Format, place: FilePath) -> Outline:
    """Another format: its arrays, as its own library reads them."""
    description = row.describe(place)
    stored = {each.tensor.name: each for each in description.stored()}
    arrays = _by_path({name: each for name, each in stored.items() if each.is_named})
    arrays |= {(name,): each for name, each in stored.items() if not each.is_named}
    leaves = {path: _stored(path, each) for path, each in arrays.items()}
    outline = outline_of_leaves(place.name, row.title, leaves, description.versions)
    outline.entries[0].calls = [
        Call(name, _names(inputs), _names(outputs)) for name, (inputs, outputs) in description.signatures.items()
    ]
    return outline


def _stored(path: Path, array: ReadableTensor) -> Entry:
    tensor = array.tensor
    entry = Entry(path, LEAF, dtype=tensor.dtype, shape=tuple(tensor.shape), read=array.read)
    sizes = [size for size in tensor.shape if isinstance(size, int)]
    with contextlib.suppress(TypeError):  # a dtype that only its library has
        entry.bytes = math.prod(sizes) * jax.numpy.dtype(tensor.dtype).itemsize * (len(sizes) == len(tensor.shape))
    return entry


def _names(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return _shapes({"name": each.name, "dtype": each.dtype, "shape": each.shape} for each in tensors)


def _arrays(place: FilePath, origin: str, arrays: Mapping[str, Any]) -> Outline:
    leaves = {path: _leaf(path, array) for path, array in _by_path(arrays).items()}
    return outline_of_leaves(place.name, origin, leaves, {})


def _by_path(arrays: Mapping[str, Any]) -> dict[Path, Any]:
    """Arrays by path; a name that would be below another array, such as ``a.b`` beside ``a``, stays one key."""
    paths = {name: _split(name) for name in arrays}
    taken = set(paths.values())
    below = {name for name, path in paths.items() if any(path[:length] in taken for length in range(1, len(path)))}
    return {((name,) if name in below else paths[name]): array for name, array in arrays.items()}


def _split(name: str) -> Path:
    """A dotted name as a path: ``layers.0.kernel`` is ``layers[0].kernel``."""
    if name.count(".") >= DEEPEST:
        return (name,)
    return tuple(int(part) if _NUMBER.fullmatch(part) else part for part in name.split("."))


def _flat(tree: Any, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    if isinstance(tree, Mapping):
        pairs: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, (list, tuple)):
        pairs = enumerate(tree)
    else:
        return {".".join(prefix): tree} if hasattr(tree, "shape") else {}
    return {name: array for key, value in pairs for name, array in _flat(value, (*prefix, str(key))).items()}
