"""An iterator with a timeout, for data that may hang."""

from __future__ import annotations

import queue
import threading
from typing import Any

from ..checkpoint.positions import has_position
from ..errors import DataError


class TimedData:
    """An iterator that raises if the next item takes too long.

    A daemon thread reads the items; after a timeout it may remain blocked.

    Args:
        data: the iterator; if it has ``get_state`` and ``set_state``, so has this one.
        seconds: the maximum time to wait for an item.

    Raises:
        DataError: no item arrived in time. Raised by iteration.
    """

    def __init__(self, data: Any, seconds: float) -> None:
        self.data: Any = data
        self.seconds = seconds
        self.knows: bool = has_position(data)
        self.position = data.get_state() if self.knows else None
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="plait waits for data").start()
        if self.knows:  # only then it also has these methods
            self.get_state = lambda: self.position
            self.set_state = self._go

    def _serve(self) -> None:
        while True:
            self.asked.get()
            try:
                item = next(self.data)
                position = self.data.get_state() if self.knows else None
                self.answers.put(("item", item, position))
            except BaseException as error:
                self.answers.put(("error", error, None))

    def _go(self, position: Any) -> None:
        self.data.set_state(position)
        self.position = position

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.asked.put(None)
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
