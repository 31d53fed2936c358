"""The parts of one array that the devices of this process hold, written layer by layer on the host.

A CPU device takes the memory of a part as it is, so the array is nowhere twice.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..typing import Array

_ALIGNMENT = 64  # bytes; a CPU device takes memory with less only as a copy
_TILE = 2**16  # elements, of which source and target fit into a core's cache


class Shards:
    """Parts of an array to be written.

    Args:
        like: its shape, dtype and sharding.
    """

    def __init__(self, like: jax.ShapeDtypeStruct) -> None:
        self.like = like
        sharding = like.sharding or SingleDeviceSharding(jax.devices()[0])
        self.indices = {
            device: _bounds(index, like.shape)
            for device, index in sharding.addressable_devices_indices_map(like.shape).items()
        }
        self.sharding: Any = sharding
        self.parts = {
            bounds: _aligned(tuple(stop - start for start, stop in bounds), like.dtype)
            for bounds in self.indices.values()
        }

    def write(self, layer: tuple[int, ...], values: np.ndarray) -> None:
        """Write the values of one layer; of a view, what no device here holds is not read.

        Args:
            layer: its indices along the first axes; empty if there is none.
            values: the layer.
        """
        for bounds, part in self.parts.items():
            own, rest = bounds[: len(layer)], bounds[len(layer) :]
            if all(start <= i < stop for i, (start, stop) in zip(layer, own, strict=True)):
                target = part[tuple(i - start for i, (start, _) in zip(layer, own, strict=True))]
                _copy(target, values[tuple(slice(*each) for each in rest)])

    def finish(self) -> Array:
        """The array; the parts must not be written any more."""
        if self.like.sharding is None:
            return jax.device_put(next(iter(self.parts.values())))
        arrays = [jax.device_put(self.parts[bounds], device) for device, bounds in self.indices.items()]
        return jax.make_array_from_single_device_arrays(self.like.shape, self.sharding, arrays)


def _bounds(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy in tiles if the source is transposed: NumPy alone takes four times as long, since it leaves the cache."""
    if source.ndim < 2 or source.strides[-1] == source.itemsize:
        np.copyto(target, source, casting="unsafe")
        return
    step = max(16, math.isqrt(_TILE // math.prod(source.shape[1:-1])))
    for i in range(0, source.shape[0], step):
        for j in range(0, source.shape[-1], step):
            tile = (slice(i, i + step), ..., slice(j, j + step))
            np.copyto(target[tile], source[tile], casting="unsafe")
