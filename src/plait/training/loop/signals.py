"""SIGINT and SIGTERM during a run: the first ends it after the current step, a second one at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from ...partitioning.processes.launched import is_launched
from .ahead import Ahead
from .processes.agreement import PATIENCE
from .run_states import RunState


class Interruptible(Protocol):
    """A run, as its signals see it."""

    ahead: Ahead
    state: RunState

    @property
    def is_evaluating(self) -> bool:
        """Whether the state from before an evaluation is kept."""
        ...

    def hear_signal(self) -> None:
        """A signal has arrived during an evaluation. This runs in a thread."""
        ...


R = TypeVar("R", bound=Interruptible)


class Signals(Generic[R]):
    """The signals of a run.

    Attributes:
        run: which they end.
        received: the name of the first signal that this process received.
        is_passed_on: whether the other processes have been told of it.
        is_known: whether this process has been told of a signal, of any process.
        is_cut_short: whether a signal has ended this run, or one inside it, before its last step.
    """

    def __init__(self, run: R) -> None:
        self.run = run
        self.received: str | None = None
        self.is_passed_on = self.is_known = self.is_cut_short = False
        self._outer_handlers: dict[int, Any] = {}
        self._process = os.getpid()
        self._is_next_own = False  # whether the next signal is that of ``wake``

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals until the block ends; only the main thread can."""
        with contextlib.ExitStack() as held:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    self._outer_handlers[number] = signal.signal(number, self._handle)
                    held.callback(signal.signal, number, self._outer_handlers[number])
            yield

    def _handle(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a child that was forked, such as a worker of the data
            signal.signal(number, self._outer_handlers[number])
            signal.raise_signal(number)
            return
        ahead = self.run.ahead
        if self._is_next_own:
            self._is_next_own = False
            ahead.interrupt()
            return
        if self.received is not None:
            if number == signal.SIGTERM and is_launched():
                return  # ``plait launch`` passes on what the process may have had itself; it kills at a second one
            ahead.is_interrupted = True
            raise KeyboardInterrupt from None  # of the request that it may interrupt
        outer = self.outer(number)
        if outer is not None and not outer.run.is_evaluating:  # it is in a step or a callback, which ends before it
            outer._handle(number, frame)
            return
        self.received = signal.Signals(number).name
        if self.run.is_evaluating:
            threading.Thread(target=self.run.hear_signal, daemon=True, name="plait ends a run").start()
        if outer is not None:
            outer._handle(number, frame)
        ahead.interrupt()

    def outer(self, number: int = signal.SIGTERM) -> Signals[R] | None:
        """The signals of the run around this one, which a signal must end too."""
        outer = getattr(self._outer_handlers.get(number), "__self__", None)
        return outer if isinstance(outer, Signals) else None

    def pass_on(self, tell: Callable[[str], None]) -> None:
        """Tell the other processes of a signal, once."""
        if self.received is not None and not self.is_passed_on:
            self.is_passed_on = True
            tell(self.received)

    def cut_short(self) -> None:
        """Note that a signal ends this run before its last step: the evaluations around it are not whole."""
        self.is_cut_short = True
        outer = self.outer()
        if outer is not None:
            outer.cut_short()

    def pass_on_late(self) -> None:
        """Let a signal that came too late to end this run do what it does outside."""
        if self.received is not None:
            number = signal.Signals[self.received]
            if self.outer(number) is None:
                signal.raise_signal(number)

    def wake_later(self) -> None:
        """The run ends: interrupt the data, if it then still prepares a batch, with a signal that ends nothing.

        The batch is one of those that are held ahead, and the data may wait for that of a process that has ended.
        """
        if self._outer_handlers:
            timer = threading.Timer(PATIENCE, self._wake)
            timer.daemon = True
            timer.start()

    def _wake(self) -> None:
        with self.run.state.lock:  # as long as it is held, the run handles signals
            if self.run.ahead.may_interrupt and not self.run.state.has_left:
                self._is_next_own = True
                signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)
