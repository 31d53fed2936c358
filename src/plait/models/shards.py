"""The parts of one array that the devices of this process hold, written layer by layer on the host.

A CPU device takes the memory of a part as it is, so the array is nowhere twice.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from ..checkpoint.stored import aligned
from ..typing import Array

_TILE = 2**16  # elements, of which source and target fit into a core's cache


class Shards:
    """Parts of an array to be written.

    Args:
        like: its shape, dtype and sharding.
    """

    def __init__(self, like: jax.ShapeDtypeStruct) -> None:
        self.like = like
        self.sharding: Sharding = like.sharding or SingleDeviceSharding(jax.devices()[0])
        held = self.sharding.addressable_devices_indices_map(like.shape).values()
        self.indices = {str(index): index or () for index in held}
        parts = aligned(len(self.indices), self.sharding.shard_shape(like.shape), like.dtype)
        self.parts = dict(zip(self.indices, parts, strict=True))

    def write(self, layer: tuple[int, ...], values: np.ndarray) -> None:
        """Write the values of one layer; of a view, what no device here holds is not read.

        Args:
            layer: its indices along the first axes; empty if there is none.
            values: the layer.
        """
        for name, index in self.indices.items():
            own = [range(size)[each] for size, each in zip(self.like.shape, index[: len(layer)], strict=False)]
            if all(i in each for i, each in zip(layer, own, strict=True)):
                place = tuple(each.index(i) for i, each in zip(layer, own, strict=True))
                _copy(self.parts[name][place], values[index[len(layer) :]])

    def finish(self) -> Array:
        """The array; the parts must not be written any more."""
        if self.like.sharding is None:
            return jax.device_put(*self.parts.values())
        return jax.make_array_from_callback(self.like.shape, self.sharding, lambda index: self.parts[str(index)])


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
