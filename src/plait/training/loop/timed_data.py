"""An iterator with a timeout, for data that may hang."""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ...checkpoint.positions import has_position, positions_of
from ...errors import DataError

# By the identity of the data. While a thread uses the data, nothing else may; what it has to do keeps it alive.
_KNOWN: weakref.WeakValueDictionary[int, TimedData] = weakref.WeakValueDictionary()
# By the identity of the data: the answers while an item is awaited, for whoever waits for it next, and the data itself
# if it has no weak references.
_AWAITED: dict[int, tuple[_Answers, Any]] = {}


def timed(data: Any, seconds: float | None) -> Any:
    """An iterator over the same items that raises if the next one takes too long; without a limit, the data itself.

    If a previous timeout left a read pending on this data, the same reader is reused, also without a limit: its item is
    the first one.

    Args:
        data: the iterator; if it has ``get_state`` and ``set_state``, so has the result.
        seconds: the maximum time to wait for an item.

    Raises:
        DataError: no item arrived in time. Raised by iteration.
    """
    found = _KNOWN.get(id(data))
    limit = threading.TIMEOUT_MAX if seconds is None else seconds
    if found is None or not found.is_busy:
        if seconds is None and id(data) not in _AWAITED:
            return data
        found = _KNOWN[id(data)] = (PositionedTimedData if has_position(data) else TimedData)(data, limit)
    found.seconds = limit
    return found


def _keeps_alive(data: Any) -> Any:
    """The data if it has no weak references: its identity may only be forgotten with it."""
    try:
        weakref.finalize(data, _AWAITED.pop, id(data), None)
    except TypeError:
        return data
    return None


class TimedData:
    """The iterator that ``timed`` returns.

    A daemon thread reads the items. It ends when the iterator is garbage, but remains blocked after a timeout for as
    long as the data blocks.
    """

    def __init__(self, data: Any, seconds: float) -> None:
        self.data, self.seconds = data, seconds
        # How many tasks the thread has got, and has done. Each number has one writer, so a signal leaves no lock held.
        # A signal just before a task is queued makes the first number too large: then the thread counts as busy.
        self.given = self.done = 0
        self.asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.answers, _ = _AWAITED.get(id(data), (_Answers(), None))
        self.number = self.answers.asked  # of the last item that was requested
        self.is_awaited = id(data) in _AWAITED  # it may still come; a signal or a timeout may have ended the waiting
        self._kept = _keeps_alive(data)
        self._get_next = functools.partial(_get_next, data, positions_of(data), self.answers)
        # A thread that has nothing to do has no reference to this object, whose end tells it to stop.
        threading.Thread(target=serve, args=(self.asked,), daemon=True, name="plait waits for data").start()
        weakref.finalize(self, self.asked.put, None)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if not self.is_awaited:
            self.number = self.answers.asked = self.number + 1
            self.is_awaited = True
            _AWAITED[id(self.data)] = self.answers, self._kept
            self.submit(functools.partial(self._get_next, self.number))
        number, kind, answer, position = 0, "", None, None
        while number != self.number:
            number, kind, answer, position = self.answers.get(self.seconds)
        self.wait_no_more()
        if isinstance(answer, BaseException) and kind == "error":
            raise answer
        self.position = position
        return answer

    def wait_no_more(self) -> None:
        """The item has been taken, or is not wanted."""
        self.is_awaited = False
        _AWAITED.pop(id(self.data), None)

    def submit(self, act: Callable[[], object]) -> None:
        """Queue a task for the thread."""
        self.given += 1
        self.asked.put(functools.partial(self.act, act))

    def act(self, act: Callable[[], object]) -> None:
        """Run a task, in the thread."""
        act()
        self.done += 1

    @property
    def is_busy(self) -> bool:
        """Whether the thread may use the data now."""
        return self.given > self.done


class PositionedTimedData(TimedData):
    """``TimedData`` with a position: after the last item that arrived."""

    def __init__(self, data: Any, seconds: float) -> None:
        self.position = positions_of(data)()
        super().__init__(data, seconds)

    def get_state(self) -> Any:
        """The position."""
        return self.position

    def set_state(self, position: Any) -> None:
        """Move to a position: now, or when the data has returned the pending item."""
        self.wait_no_more()
        if self.is_busy:
            self.submit(functools.partial(_set_state, self.data, position, self.answers, self.number + 1))
        else:
            self.data.set_state(position)
        self.position = position


def serve(asked: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    """Run the tasks of a queue until one is ``None``."""
    while (act := asked.get()) is not None:
        act()
        del act


class _Answers:
    """A queue of which one thread reads, also while a signal is handled.

    Up to Python 3.12, ``SimpleQueue.get`` waits forever if that takes until the timeout has passed. ``Queue`` stays
    locked if the handler raises.
    """

    def __init__(self) -> None:
        self.asked = 0  # the number of the last item that was requested
        self._items: collections.deque[tuple[int, str, Any, Any]] = collections.deque()
        self._has_more = threading.Lock()  # held while nothing was put
        self._has_more.acquire()

    def put(self, item: tuple[int, str, Any, Any]) -> None:
        self._items.append(item)
        with contextlib.suppress(RuntimeError):  # it is free
            self._has_more.release()

    def get(self, seconds: float) -> tuple[int, str, Any, Any]:
        deadline = time.monotonic() + seconds
        while not self._items:
            if not self._has_more.acquire(timeout=max(deadline - time.monotonic(), 0)):
                raise DataError(
                    "no batch arrived in time",
                    at="data",
                    found=f"nothing after {seconds:g} s",
                    expected="a batch",
                    do="check what the iterator is waiting for, or increase data_timeout; the state is saved",
                )
        return self._items.popleft()


def _get_next(data: Any, where: Callable[[], Any], answers: _Answers, number: int) -> None:
    try:
        answers.put((number, "item", next(data), where()))
    except BaseException as error:
        answers.put((number, "error", error, None))


def _set_state(data: Any, position: Any, answers: _Answers, number: int) -> None:
    try:
        data.set_state(position)
    except BaseException as error:  # is the next answer
        answers.put((number, "error", error, None))
