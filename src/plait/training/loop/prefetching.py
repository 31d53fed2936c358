"""Batches that are on the devices before the step asks for them."""

from __future__ import annotations

import atexit
import collections
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any, cast

from jax.sharding import Mesh, Sharding

from ...checkpoint.positions import has_position, is_same_position, positions_of
from ...errors import ArgumentError
from .placing import placing
from .timed_data import serve

PATIENCE = 5.0  # seconds


def prefetch(
    batches: Iterable[Any], size: int = 2, *, sharding: Sharding | Mesh | None = None, whole: bool = False
) -> Prefetched:
    """The same batches, each put on the devices ahead of time.

    A thread reads and transfers them, so that a step waits only for data that is slower than it. If the data hangs, a
    program that ends waits for it for a few seconds only.

    Args:
        batches: pytrees of arrays, such as ``Batches`` or a data loader.
        size: how many batches are held, each in device memory.
        sharding: how every array is laid out, such as ``NamedSharding(mesh, PartitionSpec("data"))``. A mesh means that
            the first axis is divided along the mesh axes that ``plait.partitioning.rules_for`` has for ``batch``, and
            that arrays without axes are on all devices. ``None`` is the default device.
        whole: in a run of several processes, whether each passes the same whole batches, of which its devices get
            their rows; otherwise each passes its own rows.

    Returns:
        An iterator. If ``batches`` has ``get_state`` and ``set_state``, it has them too: its position is after the
        last batch that it returned, whatever is held.

    Raises:
        ArgumentError: ``size`` is not positive, or there is an axis in the mesh that the recipe does not know. While
            iterating: the devices cannot divide a whole batch evenly; names the array.

    Example:
        >>> data = plait.training.Batches([np.zeros(2), np.ones(2)], epochs=1)
        >>> [float(batch.sum()) for batch in plait.training.prefetch(data)]
        [0.0, 2.0]
    """
    if size < 1:
        raise ArgumentError("nothing is prefetched", found=f"size={size}", expected="1 or more", do="omit size")
    kind = PositionedPrefetched if has_position(batches) else Prefetched
    return kind(cast(Any, batches), size, sharding, whole=whole)


class Prefetched(Iterator[Any]):
    """What ``prefetch`` returns."""

    def __init__(self, batches: Iterable[Any], size: int, sharding: Sharding | Mesh | None, *, whole: bool) -> None:
        self._batches = iter(batches)
        self._size, self._place = size, placing(sharding, whole=whole)
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        thread = threading.Thread(target=serve, args=(self._asked,), daemon=True, name="plait prefetches")
        _THREADS[thread] = self._asked
        thread.start()
        weakref.finalize(self, self._asked.put, None)
        self._held: collections.deque[Future[Any]] = collections.deque()
        self._moved: Future[Any] | None = None
        self._position = positions_of(batches)
        self._state, self._has_failed = self._position(), False
        self._read: list[Any] = []  # what was read, and could not be put on the devices

    def __next__(self) -> Any:
        if self._moved is not None:
            self._moved.result()
        self._fill()
        first = self._held[0]
        try:
            batch, state = first.result()
        except BaseException:
            if first.done() and first.exception() is not None:  # otherwise a signal has ended the waiting
                self._drop()  # what was requested after the error
            raise
        self._state = state  # first: a signal may end this between the two, and the caller go back
        self._held.popleft()
        self._fill()  # before the caller's step begins
        return batch

    def _fill(self) -> None:
        while len(self._held) < self._size:
            self._held.append(self._submit(self._take))

    def _submit(self, act: Callable[[], Any]) -> Future[Any]:
        """Queue a task for the thread."""
        future: Future[Any] = Future()
        self._asked.put(functools.partial(_act, future, act))
        return future

    def _take(self) -> tuple[Any, Any]:
        """The next batch on the devices, and the position after it; in the thread."""
        if self._has_failed:  # what comes after an error is requested again, and must not be lost
            raise CancelledError
        try:
            self._read = self._read or [next(self._batches)]
            placed, self._read = self._place(self._read[0]), []
            return placed, self._position()
        except BaseException:
            self._has_failed = True
            raise

    def _drop(self) -> None:
        wait([future for future in self._held if not future.cancel()])
        self._held.clear()
        self._has_failed = False


class PositionedPrefetched(Prefetched):
    """``Prefetched`` with a position: after the last batch that was taken."""

    def __init__(self, batches: Any, size: int, sharding: Sharding | Mesh | None, *, whole: bool) -> None:
        self._source = batches
        super().__init__(batches, size, sharding, whole=whole)

    def get_state(self) -> Any:
        """The position after the last batch that was taken."""
        return self._state

    def set_state(self, state: Any, /) -> None:
        """Go to a position that ``get_state`` returned; what is held is dropped, unless that is where it is."""
        if is_same_position(state, self._state) and not self._has_failed:
            return
        running = [future for future in self._held if not future.cancel() and not future.done()]
        self._held.clear()
        self._state, self._moved = state, self._submit(functools.partial(self._move, state))
        if not running:  # otherwise after the batch that is being read, which may never come
            self._moved.result()

    def _move(self, state: Any) -> None:
        """Move the source; in the thread."""
        self._has_failed = True
        self._source.set_state(state)
        self._batches, self._read, self._has_failed = iter(self._source), [], False


def _act(future: Future[Any], act: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)


# Each with the queue that ends it.
_THREADS: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[Any]] = weakref.WeakKeyDictionary()


@atexit.register
def _end_all() -> None:
    """Let the threads finish what they put on devices: one that Python stops there may abort the process."""
    deadline = time.monotonic() + PATIENCE
    for thread, asked in tuple(_THREADS.items()):
        asked.put(None)
        thread.join(max(deadline - time.monotonic(), 0))
