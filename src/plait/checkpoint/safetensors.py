"""Safetensors files, PyTorch's format for weights: arrays by name, in one file or in shards with an index.

    model.safetensors                          or    model.safetensors.index.json       name → file
                                                     model-00001-of-00002.safetensors
                                                     model-00002-of-00002.safetensors

Loading returns lazy arrays, so a model of any size can be processed one array at a time. Writing is atomic.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentTypeError, CheckpointError
from ..util.files import given_path, memory, open_file, read_file
from ..util.schemas import MOST_JSON, SchemaError, check_schema, file_name, parse_json, shape, size
from ..util.scratch import recover
from ..util.whole_writes import written_whole
from ..util.words import describe_type
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

_INDEX = {"weight_map": {str: file_name}}
_HEADER = {str: {"dtype": str, "shape": shape, "data_offsets": (size, size)}}
_MOST_HEADER = 100_000_000  # bytes, as in the safetensors library


def load_safetensors(path: str | os.PathLike[str]) -> dict[str, StoredArray]:
    """The arrays of a safetensors file, or of a sharded set, by name; values are read on demand.

    ``StoredArray.place`` reads them straight into a sharding.

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
    place = given_path(path)
    recover(place)
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
        names = parse_json(read_file(place, MOST_JSON), _INDEX)["weight_map"]
    except (OSError, SchemaError) as error:
        raise _damaged(place, f"an index that cannot be read: {error}") from error
    arrays: dict[str, StoredArray] = {}
    for shard in sorted(set(names.values())):
        for name, array in _read_file(place.parent / shard):
            if names.get(name) != shard:
                raise _damaged(place, f"{name} in {shard}, which the index lists under {names.get(name)}")
            arrays[name] = array
    absent = sorted(names.keys() - arrays.keys())
    if absent:
        raise _damaged(place, f"no {absent[0]} in {names[absent[0]]}, where the index lists it")
    return arrays


def _read_file(place: Path) -> Iterator[tuple[str, StoredArray]]:
    try:
        with open_file(place) as file:
            identity = _identity(file)
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(length, _MOST_HEADER, identity.size)), {str: Any})
        header.pop("__metadata__", None)
        check_schema(header, _HEADER)
    except FileNotFoundError as error:
        raise _damaged(place, "nothing") from error
    except (SchemaError, OSError) as error:
        raise _damaged(place, f"a file that cannot be read: {error}") from error
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in _DTYPES:
            raise _damaged(place, f"{name} of dtype {entry['dtype']}, which NumPy does not have")
        start, stop = entry["data_offsets"]
        if start != end or stop - start != math.prod(entry["shape"]) * _dtype_of(entry).itemsize:
            raise _damaged(place, f"{name} with too many or few bytes for its shape, or not after the array before")
        end = stop
    if identity.size != 8 + length + end:
        raise _damaged(place, f"{identity.size:,} bytes instead of {8 + length + end:,}")
    for name, entry in header.items():
        sizes, dtype = tuple(entry["shape"]), _dtype_of(entry)
        where = (place, identity, 8 + length + entry["data_offsets"][0], sizes, dtype)
        read, mapped = (functools.partial(act, *where) for act in (_read_array, _mapped_array))
        yield name, StoredArray(sizes, dtype, read, mapped)


def _dtype_of(entry: Mapping[str, Any]) -> np.dtype[Any]:
    return np.dtype(_DTYPES[entry["dtype"]])


class _Identity(NamedTuple):
    """What changes if a file is replaced or written to after its header was read."""

    device: int
    inode: int
    size: int
    time: int


def _identity(file: IO[bytes]) -> _Identity:
    status = os.fstat(file.fileno())
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_array(
    place: Path, identity: _Identity, offset: int, sizes: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    size, room = math.prod(sizes) * dtype.itemsize, memory()
    if room is not None and size > room:
        raise _damaged(place, f"an array of {size:,} bytes, more than this machine has memory")
    with _unchanged(place, identity) as file:
        return np.fromfile(file, dtype, math.prod(sizes), offset=offset).reshape(sizes)


def _mapped_array(
    place: Path, identity: _Identity, offset: int, sizes: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    with _unchanged(place, identity) as file:
        return np.asarray(np.memmap(file, dtype, "r", offset, sizes)) if 0 not in sizes else np.empty(sizes, dtype)


@contextlib.contextmanager
def _unchanged(place: Path, identity: _Identity) -> Iterator[BinaryIO]:
    try:
        with open_file(place) as file:
            if _identity(file) != identity:
                raise _damaged(place, "a file that has changed since it was opened")
            yield file
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _damaged(place, f"a file that has changed since it was opened: {error}") from error


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
        ArgumentTypeError: ``arrays`` is no mapping but, for example, a model; or a name is not a string, or a value
            not an array of numbers.

    Example:
        >>> path = plait.checkpoint.save_safetensors("shards", {"a": jnp.ones(8), "b": jnp.ones(8)}, shard_bytes=32)
        >>> sorted(file.name for file in path.iterdir())[0]
        'model-00001-of-00002.safetensors'
    """
    target = given_path(path).absolute()
    if not isinstance(arrays, Mapping):
        raise ArgumentTypeError(
            "safetensors files store arrays of numbers by name",
            found=describe_type(arrays),
            expected="a mapping from names to arrays",
            do="save_safetensors(path, plait.convert.to_torch(model)); or plait.checkpoint.save(path, model)",
        )
    arrays = {name: _storable(name, value) for name, value in arrays.items()}
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
    _write(target, arrays, shard_bytes, None if metadata is None else dict(metadata))
    return target


def _write(target: Path, arrays: Mapping[str, Any], shard_bytes: int, metadata: dict[str, str] | None) -> None:
    with written_whole(target, "the weights", CheckpointError, parents=True) as draft:
        if target.name.endswith(SUFFIX):
            _write_file(draft, arrays, metadata)
            return
        draft.mkdir()
        write_folder(draft, arrays, shard_bytes, metadata)


def write_folder(
    folder: Path, arrays: Mapping[str, Any], shard_bytes: int, metadata: dict[str, str] | None = None
) -> None:
    """Write arrays into a folder: one file, or shards and their index. Lazy ones are read one shard at a time."""
    files = write_shards(folder, arrays, "model", shard_bytes=shard_bytes, metadata=metadata)
    if len(files) > 1:
        places = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": sum(map(bytes_of, arrays.values()))}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_shards(
    folder: Path, arrays: Mapping[str, Any], stem: str, *, shard_bytes: int, metadata: dict[str, str] | None = None
) -> dict[str, list[str]]:
    """Write arrays to ``STEM.safetensors``, or to ``STEM-00001-of-00003.safetensors``, … in a folder.

    Args:
        shard_bytes: the maximum size of a file in bytes; a larger array gets its own file.

    Returns:
        The names of the arrays in each file.
    """
    shards = _shards(arrays, shard_bytes)
    files = {}
    for number, shard in enumerate(shards, 1):
        file = f"{stem}{SUFFIX}" if len(shards) == 1 else f"{stem}-{number:05}-of-{len(shards):05}{SUFFIX}"
        _write_file(folder / file, shard, metadata)
        files[file] = list(shard)
    return files


def _write_file(file: Path, arrays: Mapping[str, Any], metadata: dict[str, str] | None) -> None:
    from safetensors.numpy import save_file

    save_file({name: _on_host(value) for name, value in arrays.items()}, str(file), metadata)


def _shards(arrays: Mapping[str, Any], shard_bytes: int) -> list[dict[str, Any]]:
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
