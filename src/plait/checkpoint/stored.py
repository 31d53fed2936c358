"""A lazy array in a file: its shape and dtype are known, its values are read on demand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.typing import DTypeLike

from ..partitioning.mesh import check_spec

_ALIGNMENT = 64  # bytes; a CPU device takes memory with less only as a copy


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array whose values are read on demand, and not cached.

    Args:
        shape: its shape.
        dtype: its dtype.
        read: reads the values into memory.
        mapped: the values as an array whose parts are read when they are used, as from a memory map; ``None`` if there
            is no such array.

    Example:
        >>> from plait.checkpoint import StoredArray
        >>> import numpy as np
        >>> array = StoredArray((2,), np.dtype("float32"), lambda: np.ones(2, np.float32))
        >>> array.shape, np.asarray(array).tolist(), array.place().dtype.name
        ((2,), [1.0, 1.0], 'float32')
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]
    mapped: Callable[[], np.ndarray] | None = None

    def view(self) -> np.ndarray:
        """The values, mapped if that is possible; not to be kept, because the file may change."""
        return self.read() if self.mapped is None else self.mapped()

    def place(self, sharding: Sharding | None = None, *, dtype: DTypeLike | None = None) -> jax.Array:
        """The values on devices.

        Of a safetensors file, only what the devices of this process hold is read, and a part that several of them hold
        is read once; on CPU devices these share its memory. The file is mapped meanwhile, so whoever truncates it ends
        this process; renaming another file over it is safe.

        Args:
            sharding: the sharding; ``None`` means JAX's default device.
            dtype: the dtype; ``None`` means that of the file, 32-bit unless JAX has x64 enabled.

        Raises:
            ArgumentError: the sharding does not divide the shape.
            CheckpointError: the file has changed since it was opened.

        Example:
            >>> from jax.sharding import NamedSharding, PartitionSpec
            >>> path = plait.checkpoint.save_safetensors("w.safetensors", {"w": jnp.ones((8, 4))})
            >>> rows = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
            >>> plait.checkpoint.load_safetensors(path)["w"].place(rows).addressable_shards[0].data.shape
            (1, 4)
        """
        if isinstance(sharding, NamedSharding):
            check_spec(sharding.spec, sharding.mesh, self.shape, "the stored array")
        return placed(self.view(), sharding, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)


def placed(values: np.ndarray, sharding: Sharding | None, dtype: DTypeLike | None = None) -> jax.Array:
    """The values on devices, in memory of their own; of a view, only what this process's devices hold is read.

    Args:
        sharding: ``None`` means JAX's default device.
        dtype: as for ``StoredArray.place``.
    """
    kept = np.dtype(jax.dtypes.canonicalize_dtype(values.dtype if dtype is None else dtype))
    if sharding is None:
        return jax.device_put(*_ready([values], kept))
    indices = {str(index): index or () for index in sharding.addressable_devices_indices_map(values.shape).values()}
    parts = _ready([values[(*index, ...)] for index in indices.values()], kept)
    ready = dict(zip(indices, parts, strict=True))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: ready[str(index)])


def _ready(parts: Sequence[np.ndarray], dtype: np.dtype[Any]) -> list[np.ndarray]:
    """Parts of one shape as JAX takes them with one copy in all: this one, or its own if it has to transpose them.

    NumPy needs ten times as long to transpose. It takes large pages for large memory, so there is one for all parts.
    """
    like = parts[0]
    if not like.flags.c_contiguous and like.strides[-1] != like.itemsize:
        return [part.astype(dtype, copy=False) for part in parts]
    ready = aligned(len(parts), like.shape, dtype)
    for own, part in zip(ready, parts, strict=True):
        np.copyto(own, part, casting="unsafe")
    return ready


def aligned(count: int, shape: Sequence[int], dtype: np.dtype[Any]) -> list[np.ndarray]:
    """Unwritten arrays of one shape, in one memory, as CPU devices take them without a copy."""
    size = math.prod(shape) * dtype.itemsize
    stride = -(-size // _ALIGNMENT) * _ALIGNMENT
    memory = np.empty(count * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return [memory[start + i * stride :][:size].view(dtype).reshape(shape) for i in range(count)]
