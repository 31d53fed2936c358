"""How a batch is laid out on devices: one way for the batches that are read ahead and for those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ...partitioning.mesh import check_spec
from ...partitioning.recipes import rules_for


def placing(sharding: Sharding | Mesh | None, *, whole: bool) -> Callable[[Any], Any]:
    """The function that puts the arrays of a batch on the devices.

    Args:
        sharding: of every array; a mesh means the rows that its recipe has for ``batch``; ``None`` the default device.
        whole: whether each process passes the same whole batches, or its own rows.
    """
    whole = whole or jax.process_count() == 1
    sharding_of = _sharding_of(sharding)

    def put(path: Any, array: Any) -> Any:
        sharding = sharding_of(array)
        if isinstance(array, jax.Array) and sharding in (None, array.sharding):
            return array  # it may have parts on other processes, and cannot be read here
        array = owned(array)
        if sharding is None or isinstance(array, np.ma.MaskedArray):  # which JAX refuses: it has no masks
            return jax.device_put(array)
        array = np.asarray(array)
        if not whole:
            return jax.make_array_from_process_local_data(sharding, array)
        if isinstance(sharding, NamedSharding):
            check_spec(sharding.spec, sharding.mesh, array.shape, f"batch{jax.tree_util.keystr(path)}")
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return lambda batch: jax.tree_util.tree_map_with_path(put, batch)


def owned(array: Any) -> Any:
    """A copy of a NumPy array that its source may fill with the next batch, and anything else as it is.

    JAX shares the memory of such an array on a CPU, and elsewhere until it is transferred. Records and masks stay what
    they are.
    """
    return array.copy() if is_buffer(array) else array


def is_buffer(value: Any) -> bool:
    """Whether it is a NumPy array, or a view of one, that may be written to, and no part of a file."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.memmap):
        return False
    return value.flags.writeable or is_buffer(value.base)


def _sharding_of(sharding: Sharding | Mesh | None) -> Callable[[Any], Sharding | None]:
    """The sharding of each array of a batch."""
    if not isinstance(sharding, Mesh):
        return lambda _: sharding
    rows = NamedSharding(sharding, PartitionSpec(dict(rules_for(sharding))["batch"]))
    everywhere = NamedSharding(sharding, PartitionSpec())
    return lambda array: rows if np.ndim(array) else everywhere
