"""Reads the source of a conversion, in any supported format, as one flat dictionary.

The keys are dotted names: those of a torch state dict unchanged, those of a tree joined by dots, with the collection
first (``params.encoder.kernel``). Values have a shape and a dtype, and are read lazily, one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checkpoint.layout import is_orbax, steps_of_orbax
from ..checkpoint.leaf_descriptions import is_key
from ..checkpoint.orbax_trees import load_orbax_tree
from ..checkpoint.safetensors import is_safetensors, load_safetensors
from ..checkpoint.stored import StoredArray
from ..core.intermediates.variable_names import _CLASSES
from ..errors import ArgumentError, ArgumentTypeError, CheckpointError
from ..util.dtypes import is_number_dtype
from ..util.files import given_path, read_file
from ..util.words import describe_type, first_few
from .linen_bytes import read_linen_bytes

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")


def read_source(source: Any) -> dict[str, StoredArray]:
    """The arrays of a source by dotted name.

    Args:
        source: a path, msgpack bytes, or a mapping, flat or nested, of arrays, torch tensors or numbers.

    Raises:
        CheckpointError: there is nothing at the path, it is damaged, or it is a pickle.
        ArgumentTypeError: the source is none of these, or a value is not an array of numbers.
    """
    if isinstance(source, (str, os.PathLike)):
        source = _read_path(given_path(source))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        source = read_linen_bytes(bytes(source))
    if not isinstance(source, Mapping):
        raise ArgumentTypeError(
            "convert_checkpoint takes a path, bytes, or a mapping",
            found=describe_type(source),
            expected="a path, the bytes of a msgpack file, or a mapping of names to arrays",
            do="for a torch module: module.state_dict(); for a Linen TrainState: {'params': state.params}",
        )
    found: dict[str, StoredArray] = {}
    _flatten(source, (), found)
    return found


def _read_path(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise CheckpointError(
            "there is no checkpoint at this path",
            at=str(path),
            found="nothing",
            expected="a safetensors file or folder, an Orbax folder, or a Linen msgpack file",
            do="check the path",
        )
    if is_safetensors(path):
        return load_safetensors(path)
    if path.is_dir():
        if is_orbax(path):
            return load_orbax_tree(path)
        steps = steps_of_orbax(path)
        if steps:
            raise CheckpointError(
                "this is a folder of checkpoints, not one of them",
                at=str(path),
                found=f"steps of a CheckpointManager: {first_few([step.name for step in steps], 4)}",
                expected="the folder of one step",
                do=f"pass that of the newest: {str(steps[-1])!r}",
            )
        raise CheckpointError(
            "the folder has no checkpoint in a supported format",
            at=str(path),
            found=", ".join(sorted(file.name for file in path.iterdir())[:6]) or "an empty folder",
            expected="model.safetensors, model.safetensors.index.json, or an Orbax checkpoint",
            do="pass the path of the file itself, or of one step",
        )
    if path.suffix in _PICKLED:
        raise CheckpointError(
            "a torch pickle can run arbitrary code when loaded, and needs torch",
            at=str(path),
            found=f"a {path.suffix} file",
            expected="a safetensors file, or a state dict that is already loaded",
            do=f"convert_checkpoint(torch.load({str(path)!r}, weights_only=True), model, layout='torch')",
        )
    try:
        return read_linen_bytes(read_file(path), at=str(path))
    except OSError as error:
        raise CheckpointError(
            "the file cannot be read",
            at=str(path),
            found=error.strerror or str(error),
            expected="a safetensors file or folder, an Orbax folder, or a Linen msgpack file",
            do="check the path and its permissions",
        ) from error


def _flatten(value: Any, path: tuple[str, ...], found: dict[str, StoredArray]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, (*path, str(key)), found)
    elif isinstance(value, (list, tuple)) and not _is_number_list(value):
        for index, item in enumerate(value):
            _flatten(item, (*path, str(index)), found)
    elif value is not None:
        name = ".".join(path)
        if name in found:
            raise ArgumentError(
                "two values of the checkpoint have the same name",
                at=name,
                found=f"shapes {found[name].shape} and {np.shape(value)}",
                expected="names that differ when they are joined by dots",
                do="rename one of them before the conversion",
            )
        found[name] = _stored(value, name)


def _is_number_list(value: Any) -> bool:
    return bool(value) and all(type(item) in (int, float, bool) for item in value)


def _stored(value: Any, name: str) -> StoredArray:
    """A value as a lazy array; also accepts torch tensors, boxed values and random keys."""
    if isinstance(value, StoredArray):
        return value
    if callable(getattr(value, "unbox", None)):
        value = value.unbox()
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        dtype = _torch_dtype(value, name)
        return StoredArray(tuple(value.shape), dtype, lambda: _from_torch(value, dtype))
    array = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
    array = jax.random.key_data(array) if is_key(array) else array
    if not is_number_dtype(array.dtype):
        raise ArgumentTypeError(
            "a value of the checkpoint is not an array of numbers",
            at=name,
            found=f"{value!r:.60} of type {type(value).__name__}",
            expected="arrays, tensors or numbers",
            do="pass the part with the weights, such as checkpoint['state_dict']",
        )
    dtype = np.dtype(array.dtype).newbyteorder("=")  # JAX refuses the other byte order
    return StoredArray(tuple(array.shape), dtype, lambda: np.asarray(array, dtype))


def _torch_dtype(tensor: Any, name: str) -> np.dtype[Any]:
    text = str(tensor.dtype).removeprefix("torch.")
    text = {"bool": "bool_"}.get(text, text)
    if not hasattr(jnp, text):
        raise ArgumentTypeError(
            "JAX does not support the dtype of a tensor",
            at=name,
            found=str(tensor.dtype),
            expected="a dtype of jax.numpy",
            do="convert it first: tensor.dequantize(), or tensor.float()",
        )
    return np.dtype(getattr(jnp, text))


def _from_torch(tensor: Any, dtype: np.dtype[Any]) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if dtype.kind == "V":  # bfloat16 and 8-bit floats, which torch cannot convert to NumPy; float32 is exact for them
        return tensor.float().numpy().astype(dtype)
    return tensor.resolve_conj().resolve_neg().numpy() if dtype.kind == "c" else tensor.numpy()


def with_collections(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """The arrays of a Linen tree; a tree without collections is treated as ``params``."""
    if any(name.partition(".")[0] in _CLASSES for name in arrays):
        return arrays
    return {f"params.{name}": array for name, array in arrays.items()}
