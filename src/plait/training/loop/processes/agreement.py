"""How the processes of a run agree on its end: the same last step, the same reason, and the same error.

A process that wants to end (a signal, the end of its data, an error, a callback) puts that into the key-value store. A
thread of every process waits for the first such entry, freezes the number of steps that its process may begin, and
votes with it. The last step is the highest number that was begun anywhere: the others catch up. So nothing is sent
while nothing happens.

Two things make sure that they can. No process begins a step before it has the batches of the next ``AHEAD`` steps as
well, so one whose data ends says so early enough. And none begins step k before step k - ``AHEAD`` is complete, which
it is only where all have begun it (``ahead.py``).

A process may be stuck when another fails: in a step, an evaluation or a callback that needs it. Then its thread does
what is left to do (``when_stuck``).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Any

import jax

from ....errors import ArgumentError, PlaitError
from ....partitioning.processes.all_processes import Meeting, error_from_json, error_to_json, next_key, numbered_apart
from ....partitioning.processes.connect import LEFT_BEHIND, all_report
from ....partitioning.processes.key_value_store import await_entry, entries_under, gather, is_last, put_once, remove

AHEAD = 2  # steps
PATIENCE = 3.0  # seconds for a process to end after another has failed, before it is taken to be stuck
_LONG = 10.0  # seconds of one request that waits for something unusual


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a process wants to end.

    Attributes:
        kind: ``"steps"``, ``"data"``, ``"signal"``, ``"callback"`` or ``"error"``; ``"lost"`` if the process cannot go
            on to the agreed step; ``"over"`` when ``fit`` has returned.
        reason: as in ``FitResult``; of an error, ``"callback"`` if a callback raised it, otherwise ``"error"``.
        last: the last step for which the process has a batch, if it would do that one; otherwise 0.
        begun: the number of steps that it has begun.
        error: of an error, what ``error_to_json`` returns.
    """

    kind: str
    reason: str
    last: int = 0
    begun: int = 0
    error: dict[str, Any] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is this process's error."""
        return self.error is not None and self.error["process"] == jax.process_index()

    @property
    def raised(self) -> PlaitError | SystemExit | None:
        """The error, as another process raises it."""
        return None if self.error is None else error_from_json(self.error)


def error_ending(error: BaseException, *, kind: str = "error", reason: str = "error", last: int = 0) -> Ending:
    """The end by an error."""
    return Ending(kind, reason, last, error=error_to_json(error))


def check_same(given: dict[str, Any]) -> None:
    """Raise in all processes if one calls ``fit`` with other arguments: they would wait for each other without end.

    Raises:
        ArgumentError: names those that differ.
    """
    texts = gather(next_key("fit"), json.dumps(given, default=int))  # also those of NumPy
    different: list[dict[str, Any]] = [json.loads(text) for text in sorted({*texts})]
    names = [name for name in given if any(each[name] != different[0][name] for each in different)]
    if names:
        raise all_report(
            ArgumentError(
                "the processes of this run call fit with different arguments",
                at=", ".join(names),
                found="; ".join(", ".join(f"{name}={each[name]}" for name in names) for each in different[:4]),
                expected="the same in all processes, which evaluate and save together",
                do="pass the same values, whatever jax.process_index() is; loggers write on process 0 alone",
            )
        )


class SingleProcess:
    """The agreement of a single process."""

    ahead = 0

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.last: int | None = None

    def call(self, ending: Ending) -> None:
        """Ask for the end. The first call counts."""
        self.ending = self.ending or ending

    def begin_after(self, step: int) -> None:
        """Earlier runs have done the steps up to this one."""

    def begins(self, step: int, have: int, is_over: bool) -> bool:
        """Whether this step is to be done.

        Args:
            step: one more than the steps done.
            have: the last step for which there is a batch.
            is_over: whether there are no batches after it.
        """
        return self.ending is None or step <= self.ending.last

    def end_after(self, step: int) -> None:
        """All processes, of which one has called, are after this step, and do no other one."""

    def await_first_batches(self, has_called: bool) -> None:
        """Before the first step: wait until all have their first batches, or one has called."""

    def keep_pace(self, step: int) -> None:
        """Before a step: wait until every process has come so far but for ``AHEAD`` steps."""

    def in_users_code(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Code of the user with this name, in which a process may fail before it does something with the others."""
        return contextlib.nullcontext()

    def worst(self, word: str, name: str | None = None) -> str:
        """The first word but ``""`` with which a process calls this; ``""`` if none.

        Args:
            word: of this process.
            name: of the call; without one, it is known by its number, and all processes make as many in this order.
        """
        return word

    def gathered(self, value: Any) -> list[Any]:
        """The values, data for JSON, with which all processes call this, in their order."""
        return [value]

    def first_error(self, own: BaseException | None) -> BaseException | None:
        """The first error of all processes, which all ask for at the end; ``own`` if it was the first."""
        return own

    def close(self) -> None:
        """This process is done, and so are all."""

    def lose(self, error: BaseException) -> None:
        """This process has failed: inform the others, and give them time to end."""

    def leave(self) -> None:
        """This process ends because another has failed."""


class MultiProcess:
    """The agreement of several processes.

    Args:
        when_stuck: called in a thread with every call of an error, also of this process, after the processes agreed. It
            may end the process.
        when_signalled: called in a thread at the first signal, after the processes agreed, unless an error was before:
            also if it comes after another end, during the last evaluation.
        when_agreed: called in a thread when the processes have agreed on the last step.
    """

    ahead = AHEAD

    def __init__(
        self,
        when_stuck: Callable[[Ending], None],
        when_signalled: Callable[[], None],
        when_agreed: Callable[[], None] = lambda: None,
    ) -> None:
        self.ending: Ending | None = None
        self._when_stuck, self._when_signalled, self._when_agreed = when_stuck, when_signalled, when_agreed
        self._key = next_key("fit")
        self._changed = threading.Condition()
        self._begun = self._have = 0
        self._is_over = False
        self._called: Ending | None = None
        self.last: int | None = None  # the agreed step
        self._seen = 0  # the number of events
        self._paced: set[int] = set()
        within = contextvars.copy_context()  # where this run meets
        self._thread = threading.Thread(
            target=within.run, args=(self._watch,), daemon=True, name="plait waits for other processes"
        )
        LEFT_BEHIND.add(self._thread)  # if a run fails, and the program goes on
        self._thread.start()

    def call(self, ending: Ending) -> None:
        """Ask for the end. The first call of all processes counts."""
        with self._changed:
            self._is_over = self._is_over or ending.kind == "lost"
            self._changed.notify_all()
        text = json.dumps(dataclasses.asdict(dataclasses.replace(ending, begun=self._begun)), default=int)
        number = self._seen
        while not put_once(f"{self._key}/event/{number}", text):
            number += 1
        with self._changed:  # until the thread knows, this process could begin more steps
            self._changed.wait_for(lambda: self._called is not None or ending.kind == "over")

    def begin_after(self, step: int) -> None:
        """As in ``SingleProcess``."""
        self._begun = self._have = step

    def begins(self, step: int, have: int, is_over: bool) -> bool:
        """As in ``SingleProcess``."""
        # At each step, so without the lock, which takes longer than all else here. Either this sees the call and waits
        # for the last step, or the thread, which notes the call before it reads the number, votes for this step.
        self._have, self._is_over = have, is_over
        if self._called is None:
            self._begun = step
            if self._called is None:
                return True
        with self._changed:
            self._changed.notify_all()
            if step > self._called.begun:
                self._changed.wait_for(lambda: self.last is not None)
                assert self.last is not None
                if step > self.last or self._called.kind == "lost":
                    return False
            self._begun = step
            return True

    def end_after(self, step: int) -> None:
        """As in ``SingleProcess``."""
        with self._changed:
            self._changed.wait_for(lambda: self.last is not None)
            self.last = step

    def await_first_batches(self, has_called: bool) -> None:
        """As in ``SingleProcess``."""
        if self.worst("called" if has_called else ""):
            with self._changed:
                self._changed.wait_for(lambda: self._called is not None)

    def keep_pace(self, step: int) -> None:
        """As in ``SingleProcess``."""
        self._paced.add(step)
        if is_last(f"{self._key}/pace/{step}/count"):
            put_once(f"{self._key}/pace/{step}/all", "")
            remove(f"{self._key}/pace/{step - AHEAD}")  # all have waited for it
        passed = step - AHEAD + 1  # who is before this step has begun the one before it
        if passed in self._paced:
            self._paced.discard(passed)
            await_entry(f"{self._key}/pace/{passed}/all")

    def in_users_code(self, name: str) -> contextlib.AbstractContextManager[None]:
        """As in ``SingleProcess``."""
        return numbered_apart(f"{self._key}/{name}")

    def worst(self, word: str, name: str | None = None) -> str:
        """As in ``SingleProcess``."""
        meeting = Meeting(name and f"{self._key}/{name}")
        meeting.tell({"word": word} if word else None)
        return (meeting.heard() or {"word": ""})["word"]

    def gathered(self, value: Any) -> list[Any]:
        """As in ``SingleProcess``."""
        return [json.loads(text) for text in gather(next_key("gathered"), json.dumps(value))]

    def first_error(self, own: BaseException | None) -> BaseException | None:
        """As in ``SingleProcess``."""
        mine = None if own is None else error_to_json(own)
        meeting = Meeting()
        meeting.tell(mine)
        late = meeting.heard()
        first = late if self.ending is None or self.ending.error is None else self.ending.error
        return own if first == mine or first is None else error_from_json(first)

    def close(self) -> None:
        """As in ``SingleProcess``."""
        self.call(Ending("over", ""))
        self._thread.join()

    def lose(self, error: BaseException) -> None:
        """As in ``SingleProcess``."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.call(error_ending(error, kind="lost"))
            self.leave()
            await_entry(f"{self._key}/gone", PATIENCE + 2)

    def leave(self) -> None:
        """As in ``SingleProcess``."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if is_last(f"{self._key}/leaving"):
                put_once(f"{self._key}/gone", "")

    def _watch(self) -> None:
        is_first = True  # of the signals and errors
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone; JAX ends this process
            while True:
                event = self._event(self._seen)
                self._seen += 1
                if event.kind == "over":
                    return
                if self.ending is None:
                    self._agree(event)
                    self._when_agreed()
                if event.kind == "signal" and is_first:
                    self._when_signalled()
                if event.error is not None:
                    self._when_stuck(event)
                if event.kind == "lost":
                    return
                is_first = is_first and event.kind != "signal" and event.error is None

    def _event(self, number: int) -> Ending:
        text = await_entry(f"{self._key}/event/{number}", each=_LONG)
        assert text is not None
        return Ending(**json.loads(text))

    def _agree(self, called: Ending) -> None:
        with self._changed:
            self._called = called
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._have >= called.last or self._is_over)
            vote = {"begun": self._begun, "have": min(self._have, called.last)}
        put_once(f"{self._key}/vote/{jax.process_index()}", json.dumps(vote))
        if is_last(f"{self._key}/votes"):
            votes = [json.loads(text) for text in entries_under(f"{self._key}/vote")]
            last_begun, all_have = max(each["begun"] for each in votes), min(each["have"] for each in votes)
            put_once(f"{self._key}/last", str(max(last_begun, all_have)))
        last = await_entry(f"{self._key}/last", each=_LONG)
        assert last is not None
        if called.error is None and int(last) < called.last:  # something else kept a process from its batches
            called = self._event(self._seen)
        with self._changed:
            self.ending, self.last = called, int(last)
            self._changed.notify_all()
