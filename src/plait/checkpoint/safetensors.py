"""Safetensors files, PyTorch's format for weights: arrays by name, in one file or in shards with an index.

    model.safetensors                          or    model.safetensors.index.json       name → file
                                                     model-00001-of-00002.safetensors
                                                     model-00002-of-00002.safetensors

Loading returns lazy arrays, so a model of any size can be processed one array at a time. Writing is atomic.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentTypeError, CheckpointError
from ..ground.whole_writes import written_whole
from .reading import bytes_of
from .stored import StoredArray

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
SUFFIX = ".safetensors"
SHARD_BYTES = 5 * 10**9

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": jnp.bfloat16, "F32": np.float32,
    "F64": np.float64, "C64": np.complex64, "F8_E4M3": jnp.float8_e4m3fn, "F8_E5M2": jnp.float8_e5m2,
}  # fmt: skip


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, StoredArray]:
    """The arrays of a safetensors file, or of a sharded set, by name; values are read on demand.

    Args:
        path: a ``.safetensors`` file, a ``.safetensors.index.json``, or a folder with ``model.safetensors`` or an
            index in it.

    Raises:
        CheckpointError: the path is none of these, a file is truncated or damaged, or the index does not match the
            files.

    Example:
        >>> path = plait.checkpoint.save_safetensors("weights.safetensors", {"w": jnp.ones((2, 3))})
        >>> arrays = plait.checkpoint.load_safetensors(path)
        >>> arrays["w"].shape, arrays["w"].read().sum().item()
        ((2, 3), 6.0)
    """
    place = Path(path)
    if place.is_dir():
        place = _in_folder(place)
    if place.name.endswith(".index.json"):
        return _read_index(place)
    return dict(_read_file(place))


def is_safetensors(path: Path) -> bool:
    """Whether a path looks like what ``load_safetensors`` reads."""
    if path.is_dir():
        return (path / INDEX).is_file() or (path / WHOLE).is_file()
    return path.name.endswith((SUFFIX, ".safetensors.index.json"))


def _in_folder(folder: Path) -> Path:
    for name in (INDEX, WHOLE):
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(
        "the folder has no safetensors weights",
        at=str(folder),
        found=", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "an empty folder",
        expected=f"{INDEX} or {WHOLE}",
        do="pass the path of the .safetensors file itself",
    )


def _read_index(place: Path) -> dict[str, StoredArray]:
    try:
        names = json.loads(place.read_bytes())["weight_map"]
        shards = sorted(set(names.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(place, f"an index that cannot be read ({type(error).__name__}: {error})") from error
    if any(Path(shard).name != shard for shard in shards):
        raise _damaged(place, "an index that names files outside its own folder")
    arrays: dict[str, StoredArray] = {}
    for shard in shards:
        for name, array in _read_file(place.parent / shard):
            if names.get(name) != shard:
                raise _damaged(place, f"{name} in {shard}, which the index lists under {names.get(name)}")
            arrays[name] = array
    absent = sorted(names.keys() - arrays.keys())
    if absent:
        raise _damaged(place, f"no {absent[0]} in {names[absent[0]]}, where the index lists it")
    return arrays


def _read_file(place: Path) -> Iterator[tuple[str, StoredArray]]:
    import safetensors

    try:
        with safetensors.safe_open(str(place), framework="numpy"):
            pass  # checks the header against the file size; the arrays are not used, since they lack the 8-bit floats
        with open(place, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except FileNotFoundError as error:
        raise _damaged(place, "nothing") from error
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(place, f"a file that cannot be read ({error})") from error
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise _damaged(place, f"{name} of dtype {entry['dtype']}, which NumPy does not have")
        shape, dtype = tuple(entry["shape"]), np.dtype(_DTYPES[entry["dtype"]])
        read = functools.partial(_read_array, place, 8 + length + entry["data_offsets"][0], shape, dtype)
        yield name, StoredArray(shape, dtype, read)


def _read_array(place: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    try:
        return np.fromfile(place, dtype, math.prod(shape), offset=offset).reshape(shape)
    except (OSError, ValueError) as error:
        raise _damaged(place, f"a file that has changed since it was opened ({error})") from error


def save_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    *,
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save arrays by name: to one file, or to a folder of shards with an index.

    Args:
        path: ends in ``.safetensors`` for one file; anything else is a folder to create, with ``model.safetensors``,
            or with shards and ``model.safetensors.index.json`` if the arrays exceed ``shard_bytes``.
        arrays: the arrays, such as ``plait.convert.to_torch(model)``.
        shard_bytes: the maximum size of a shard in bytes; a larger array gets its own shard.
        metadata: strings to store in each file; some readers need ``{"format": "pt"}``.
        overwrite: whether to replace existing weights at ``path``.

    Returns:
        The absolute path.

    Raises:
        CheckpointError: ``path`` exists, or it cannot be written.
        ArgumentTypeError: a name is not a string, or a value not an array of numbers.

    Example:
        >>> path = plait.checkpoint.save_safetensors("shards", {"a": jnp.ones(8), "b": jnp.ones(8)}, shard_bytes=32)
        >>> sorted(file.name for file in path.iterdir())[0]
        'model-00001-of-00002.safetensors'
    """
    target = Path(path).absolute()
    shards = _shards({name: _storable(name, value) for name, value in arrays.items()}, shard_bytes)
    if os.path.lexists(target) and not overwrite:
        raise CheckpointError(
            "the path of the weights already exists",
            at=str(target),
            found="a folder" if target.is_dir() else "a file",
            expected="a path that does not exist",
            do="choose another path, or pass overwrite=True to replace it",
        )
    if target.is_dir() and (target.name.endswith(SUFFIX) or not is_safetensors(target)):
        raise CheckpointError(
            "overwrite=True replaces only safetensors weights",
            at=str(target),
            found="a folder with other files",
            expected=f"a folder with {WHOLE} or {INDEX}, or a path that does not exist",
            do="choose another path, or delete the existing one yourself",
        )
    try:
        _write(target, shards, None if metadata is None else dict(metadata))
    except OSError as error:
        raise CheckpointError(
            "the weights cannot be written",
            at=str(target),
            found=error.strerror or str(error),
            expected="a writable folder, and free space on the disk",
            do="choose another path",
        ) from error
    return target


def _write(target: Path, shards: list[dict[str, Any]], metadata: dict[str, str] | None) -> None:
    from safetensors.numpy import save_file

    with written_whole(target, parents=True) as draft:
        if target.name.endswith(SUFFIX):
            whole = {name: _on_host(value) for shard in shards for name, value in shard.items()}
            save_file(whole, str(draft), metadata)
        else:
            draft.mkdir()
            places = {}
            for number, shard in enumerate(shards, 1):
                file = WHOLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}{SUFFIX}"
                save_file({name: _on_host(value) for name, value in shard.items()}, str(draft / file), metadata)
                places.update(dict.fromkeys(shard, file))
            if len(shards) > 1:
                total = sum(bytes_of(value) for shard in shards for value in shard.values())
                index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
                (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(arrays: dict[str, Any], shard_bytes: int) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = [{}]
    room = shard_bytes
    for name, value in arrays.items():
        if shards[-1] and bytes_of(value) > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = value
        room -= bytes_of(value)
    return shards


def _on_host(value: Any) -> np.ndarray:
    return np.array(value, order="C", copy=None)


def _storable(name: Any, value: Any) -> Any:
    value = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
    if not isinstance(name, str) or value.dtype not in {np.dtype(each) for each in _DTYPES.values()}:
        raise ArgumentTypeError(
            "safetensors files store arrays of numbers by name",
            at=repr(name),
            found=f"dtype {value.dtype}",
            expected="a string, and one of the dtypes " + ", ".join(np.dtype(each).name for each in _DTYPES.values()),
            do="omit it, or convert it with jnp.asarray(value, jnp.float32)",
        )
    return value


def _damaged(place: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "the safetensors weights are incomplete or damaged",
        at=str(place),
        found=found,
        expected="complete safetensors files, and an index that matches them",
        do="download or write them again",
    )
