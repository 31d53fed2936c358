"""An iterator with a timeout, for data that may hang."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any

from ..checkpoint.positions import has_position
from ..errors import DataError


def timed(data: Any, seconds: float) -> TimedData:
    """An iterator over the same items that raises if the next one takes too long.

    Args:
        data: the iterator; if it has ``get_state`` and ``set_state``, so has the result.
        seconds: the maximum time to wait for an item.

    Raises:
        DataError: no item arrived in time. Raised by iteration.
    """
    return (PositionedTimedData if has_position(data) else TimedData)(data, seconds)


class TimedData:
    """The iterator that ``timed`` returns.

    A daemon thread reads the items. It ends when the iterator is garbage, but remains blocked after a timeout for as
    long as the data blocks.
    """

    def __init__(self, data: Any, seconds: float) -> None:
        self.seconds = seconds
        self.asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        # The thread has no reference to this object, whose end tells it to stop.
        arguments = (data, self.asked, self.answers)
        threading.Thread(target=_serve, args=arguments, daemon=True, name="plait waits for data").start()
        weakref.finalize(self, self.asked.put, False)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.asked.put(True)
        try:
            kind, answer, position = self.answers.get(timeout=self.seconds)
        except queue.Empty:
            raise DataError(
                "no batch arrived in time",
                at="data",
                found=f"nothing after {self.seconds:g} s",
                expected="a batch",
                do="check what the iterator is waiting for, or increase data_timeout; the state of the run is saved",
            ) from None
        if kind == "error":
            raise answer
        self.position = position
        return answer


class PositionedTimedData(TimedData):
    """One whose data has a position: that after the last item that arrived."""

    def __init__(self, data: Any, seconds: float) -> None:
        self.data: Any = data
        self.position = data.get_state()
        super().__init__(data, seconds)

    def get_state(self) -> Any:
        """The position."""
        return self.position

    def set_state(self, position: Any) -> None:
        """Move to a position."""
        self.data.set_state(position)
        self.position = position


def _serve(data: Any, asked: queue.SimpleQueue[bool], answers: queue.SimpleQueue[tuple[str, Any, Any]]) -> None:
    knows = has_position(data)
    while asked.get():
        try:
            item = next(data)
            answers.put(("item", item, data.get_state() if knows else None))
            del item  # a batch is large
        except BaseException as error:
            answers.put(("error", error, None))
