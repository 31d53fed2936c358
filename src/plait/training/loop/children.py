"""Signals of child processes while ``fit`` runs.

PyTorch's handler of SIGCHLD raises an error when a worker of a ``DataLoader`` has died, wherever the program is: in a
step, or in the save with which a signal to all processes ends the run. Here such handlers are called while a batch is
read, so that what they raise is an error of the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Children:
    """Holds the handlers of SIGCHLD back, but while they are heard."""

    def __init__(self) -> None:
        self._is_held = self.waits = False
        self.noted: list[_HeldBack] = []

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold them back until the block ends; only the main thread can."""
        self._is_held = hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread()
        self.go_on()
        try:
            yield
        finally:
            self._end()

    def hear(self) -> None:
        """Call those that were held back, and others at once."""
        self.waits = False
        while self.noted:
            self.noted.pop()(signal.SIGCHLD, None)

    def go_on(self) -> None:
        """Hold them back again, also one that was set meanwhile."""
        self.waits = self._is_held
        if self._is_held:
            handler = signal.getsignal(signal.SIGCHLD)
            if callable(handler) and not isinstance(handler, _HeldBack):
                signal.signal(signal.SIGCHLD, _HeldBack(self, handler))

    def _end(self) -> None:
        if self._is_held:
            self._is_held = False
            handler = signal.getsignal(signal.SIGCHLD)
            if isinstance(handler, _HeldBack) and handler.children is self:
                signal.signal(signal.SIGCHLD, handler.handler)
        with contextlib.suppress(Exception):  # nothing asks for the data any more
            self.hear()


@dataclasses.dataclass(frozen=True, eq=False)
class _HeldBack:
    """A handler that may have to wait. Another handler that was set later may call it."""

    children: Children
    handler: Callable[[int, Any], Any]

    def __call__(self, number: int, frame: Any) -> None:
        if self.children.waits:
            self.children.noted.append(self)
        else:
            self.handler(number, frame)
