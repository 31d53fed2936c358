"""The states of a run, and the events between them.

Two threads move a run: the one that trains, and in a multi-process run the one that listens to other processes. If
the user's code waits for a process that has failed, the second thread takes the run over and ends it.
"""

from __future__ import annotations

import enum
import threading


class State(enum.Enum):
    """Where a run is."""

    STEPPING = enum.auto()  # it does steps, and what follows them
    EVALUATING = enum.auto()
    STOPPED = enum.auto()  # an evaluation has failed, here or in another process: all end after this step
    TAKEN_OVER = enum.auto()  # the training thread is stuck, and the other thread ends the run
    TAKEN_OVER_AND_AGREED = enum.auto()
    AGREED = enum.auto()  # all processes know how the run has ended
    LEFT = enum.auto()  # it is over in this process


class Event(enum.Enum):
    """What happens to a run."""

    EVALUATE = enum.auto()
    EVALUATION_DONE = enum.auto()
    EVALUATION_FAILED = enum.auto()
    TAKE_OVER = enum.auto()
    AGREE = enum.auto()
    LEAVE = enum.auto()


TRANSITIONS = {
    (State.STEPPING, Event.EVALUATE): State.EVALUATING,
    (State.EVALUATING, Event.EVALUATION_DONE): State.STEPPING,
    (State.EVALUATING, Event.EVALUATION_FAILED): State.STOPPED,
    (State.STEPPING, Event.TAKE_OVER): State.TAKEN_OVER,  # in a callback
    (State.EVALUATING, Event.TAKE_OVER): State.TAKEN_OVER,
    (State.STOPPED, Event.TAKE_OVER): State.TAKEN_OVER,  # in a callback
    (State.STEPPING, Event.AGREE): State.AGREED,
    (State.STOPPED, Event.AGREE): State.AGREED,
    (State.TAKEN_OVER, Event.AGREE): State.TAKEN_OVER_AND_AGREED,
    # A run inside the evaluation of another learns of a second error while the outer one ends.
    (State.TAKEN_OVER, Event.TAKE_OVER): State.TAKEN_OVER,
    (State.TAKEN_OVER_AND_AGREED, Event.TAKE_OVER): State.TAKEN_OVER_AND_AGREED,
    (State.TAKEN_OVER_AND_AGREED, Event.AGREE): State.TAKEN_OVER_AND_AGREED,
    **{(state, Event.LEAVE): State.LEFT for state in State},
}


class RunState:
    """The state of a run.

    Attributes:
        lock: held while the state changes, and by the thread that takes the run over until it has ended the process.
    """

    def __init__(self) -> None:
        self.now = State.STEPPING
        self.lock = threading.RLock()

    def move(self, event: Event) -> None:
        """Move to the next state, once no other thread ends the run."""
        with self.lock:
            assert (self.now, event) in TRANSITIONS, f"a run that is {self.now.name} cannot {event.name}"
            self.now = TRANSITIONS[self.now, event]

    @property
    def is_stopped(self) -> bool:
        """Whether an evaluation has failed, so that no step follows."""
        return self.now is State.STOPPED

    @property
    def is_taken_over(self) -> bool:
        """Whether the thread that listens to other processes ends the run."""
        return self.now in (State.TAKEN_OVER, State.TAKEN_OVER_AND_AGREED)

    @property
    def has_agreed(self) -> bool:
        """Whether all processes know how the run has ended."""
        return self.now in (State.AGREED, State.TAKEN_OVER_AND_AGREED)

    @property
    def has_left(self) -> bool:
        """Whether the run is over in this process."""
        return self.now is State.LEFT
