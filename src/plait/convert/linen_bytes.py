"""Reads Linen's msgpack files, the output of ``flax.serialization.to_bytes``, without Flax.

A file is one msgpack map. Three extension types add what msgpack lacks: 1 an array and 3 a NumPy scalar, each encoded
as msgpack of (shape, dtype name, bytes in C order); 2 a complex number, (real, imaginary). An array of more than a
gigabyte is a map of flat chunks: ``{"__msgpack_chunked_array__": True, "shape": {"0": …}, "chunks": {"0": …}}``. Lists
and tuples are maps with the keys ``"0"``, ``"1"``, ….
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import CheckpointError
from ..util.dtypes import is_number_dtype
from ..util.schemas import check_schema, fits, shape, size, unique

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_CHUNKED = "__msgpack_chunked_array__"


def read_linen_bytes(data: bytes, *, at: str = "the bytes") -> Any:
    """The tree of a Linen msgpack file: nested dicts of NumPy arrays and numbers.

    Raises:
        CheckpointError: the bytes are truncated, or not a Linen checkpoint.
    """
    import msgpack

    try:  # by default, nothing may be longer than the data
        tree = msgpack.unpackb(data, ext_hook=_extension, strict_map_key=False, object_pairs_hook=unique)
        tree = _joined(tree)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise CheckpointError(
            "the msgpack checkpoint is incomplete or damaged",
            at=at,
            found=f"{len(data):,} bytes, and: {str(error) or type(error).__name__}"[:300],
            expected="the complete output of flax.serialization.to_bytes",
            do="copy or write it again",
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(
            "this is not a Linen msgpack checkpoint",
            at=at,
            found=reprlib.repr(tree)[:60],
            expected="a map of collections, as flax.serialization.to_bytes writes",
            do="check the path; safetensors files end in .safetensors",
        )
    return tree


def _extension(code: int, data: bytes) -> Any:
    import msgpack

    if code == _COMPLEX:
        parts = msgpack.unpackb(data)
        check_schema(parts, (float, float), "a complex number")
        return complex(*parts)
    if code not in (_ARRAY, _SCALAR):
        raise ValueError(f"an extension type {code} that Linen does not write")
    array = msgpack.unpackb(data, raw=False)
    check_schema(array, (shape, _is_dtype, bytes), "an array")
    sizes, dtype, values = array
    return np.frombuffer(values, _dtype(dtype)).reshape(sizes)


def _dtype(name: str) -> Any:
    return getattr(jnp, name, name)


def _is_dtype(name: Any) -> bool:
    """The name of a dtype of numbers."""
    return isinstance(name, str) and is_number_dtype(_dtype(name))


def _joined(tree: Any) -> Any:
    """The tree with chunked arrays concatenated."""
    if not isinstance(tree, dict):
        return tree
    if _CHUNKED not in tree:
        return {key: _joined(value) for key, value in tree.items()}
    check_schema(tree, {"shape": _numbered(size), "chunks": _numbered(np.ndarray)}, "a chunked array")
    sizes, pieces = ([tree[name][str(number)] for number in range(len(tree[name]))] for name in ("shape", "chunks"))
    return np.concatenate(pieces).reshape(sizes)


def _numbered(schema: Any) -> Callable[[Any], bool]:
    def is_numbered(value: Any) -> bool:
        """A list as a map with the keys 0, 1, …."""
        names = set(map(str, range(len(value)))) if isinstance(value, dict) else None
        return names == {*value} and all(fits(item, schema) for item in value.values())

    return is_numbered
