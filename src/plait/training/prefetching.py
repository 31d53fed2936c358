"""Batches that are on the devices before the step asks for them."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from ..errors import ArgumentError


def prefetch(batches: Iterable[Any], size: int = 2, *, sharding: Sharding | None = None) -> Prefetched:
    """The same batches, of which the next ones are put on the devices ahead of time.

    JAX transfers in the background, so a step that runs does not wait for the batch after it. To be computed ahead too,
    the batches must come from a loader with workers of its own.

    Args:
        batches: pytrees of arrays, such as ``Batches`` or a data loader.
        size: how many batches are held, each in device memory.
        sharding: how every array is laid out, such as ``NamedSharding(mesh, PartitionSpec("data"))``. With several
            processes each passes its own rows. ``None`` is the default device.

    Returns:
        An iterator. If ``batches`` has ``get_state`` and ``set_state``, so has it: the position is that of the batches
        that were taken, whatever is held.

    Raises:
        ArgumentError: ``size`` is not positive.

    Example:
        >>> data = plait.training.Batches([np.zeros(2), np.ones(2)], epochs=1)
        >>> [float(batch.sum()) for batch in plait.training.prefetch(data)]
        [0.0, 2.0]
    """
    if size < 1:
        raise ArgumentError("nothing is prefetched", found=f"size={size}", expected="1 or more", do="omit size")
    return Prefetched(batches, size, sharding)


class Prefetched(Iterator[Any]):
    """What ``prefetch`` returns."""

    def __init__(self, batches: Iterable[Any], size: int, sharding: Sharding | None) -> None:
        self._source, self._batches = batches, iter(batches)
        self._size, self._sharding = size, sharding
        self._held: collections.deque[tuple[Any, Any, BaseException | None]] = collections.deque()

    def __next__(self) -> Any:
        self._fill()
        _, batch, error = self._held.popleft()
        if error is not None:
            raise error
        self._fill()  # before the caller's step begins
        return batch

    def _fill(self) -> None:
        """Hold as many batches as asked for. An error, or the end, comes after the batches before it."""
        while len(self._held) < self._size and not (self._held and self._held[-1][2]):
            state = self._position()
            try:
                self._held.append((state, jax.tree.map(self._put, next(self._batches)), None))
            except Exception as error:  # StopIteration too
                self._held.append((state, None, error))

    def _put(self, array: Any) -> Any:
        if self._sharding is None:
            return jax.device_put(array)
        return jax.make_array_from_process_local_data(self._sharding, np.asarray(array))

    def _position(self) -> Any:
        return self._source.get_state() if hasattr(self._source, "get_state") else None  # type: ignore[attr-defined]

    def get_state(self) -> Any:
        """The position after the last batch that was taken."""
        return self._held[0][0] if self._held else self._position()

    def set_state(self, state: Any, /) -> None:
        """Go to a position that ``get_state`` returned; what is held is dropped."""
        self._source.set_state(state)  # type: ignore[attr-defined]
        self._batches = iter(self._source)
        self._held.clear()
