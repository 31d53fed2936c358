"""What several processes do together: one acts for all, or all act, and each receives the outcome, or the first error.

The outcomes go over the key-value store (``partitioning/processes/key_value_store.py``). All processes meet in the same
order, which numbers the meetings. Those in code of the user, which may fail in one process before it meets, have
numbers of their own.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from ... import errors
from ...errors import PlaitError, ProcessError
from ...util.words import text_of
from .connect import LEFT_BEHIND
from .key_value_store import arrive, await_outcome, is_last, put_once

T = TypeVar("T", bound=str | None)
R = TypeVar("R")

_LONGEST = 4_000  # letters of a part of an error
_DONE = "SystemExit"  # the kind of sys.exit(0)
_NUMBERS = itertools.count()
_WITHIN: contextvars.ContextVar[tuple[str, Iterator[int]] | None] = contextvars.ContextVar("within", default=None)


def next_key(kind: str) -> str:
    """The key of what the processes do together next."""
    place, numbers = _WITHIN.get() or ("plait", _NUMBERS)
    return f"{place}/{kind}/{next(numbers)}"


@contextlib.contextmanager
def numbered_apart(key: str) -> Iterator[None]:
    """Inside ``with``, joint actions have numbers of their own: a process that fails there keeps in step afterwards."""
    outer = _WITHIN.get()
    token = _WITHIN.set((f"{outer[0] if outer else 'plait'}/{key}", itertools.count()))
    try:
        yield
    finally:
        _WITHIN.reset(token)


def run_on_process_0(act: Callable[[], T]) -> T:
    """Let process 0 act; every process returns its text or its ``None``, or raises its error.

    All processes must call it. With one process this is a plain call.
    """
    if jax.process_count() == 1:
        return act()
    key = next_key("first")
    arrive(key)
    if jax.process_index() == 0:
        try:
            outcome: dict[str, Any] = {"text": act()}
        except Exception as error:
            put_once(f"{key}/end", json.dumps(error_to_json(error)))
            raise
        put_once(f"{key}/end", json.dumps(outcome))
        return outcome["text"]
    heard = json.loads(await_outcome(key, "end"))
    if "text" in heard:
        return heard["text"]
    raise error_from_json(heard)


def run_on_all(act: Callable[[], R], *, may_wait: bool = False) -> R:
    """Let every process act, and return its result when all have; or raise the error of the first that failed, at once.

    All processes must call it. With one process this is a plain call.

    Args:
        act: what to do.
        may_wait: whether it waits for the other processes, so that one that failed would be waited for: it runs in a
            thread then, which is left behind if another process fails.
    """
    if jax.process_count() == 1:
        return act()
    meeting, own, results = Meeting(), [], []

    def attempt() -> None:
        try:
            results.append(act())
        except BaseException as error:
            own.append(error)
            meeting.arrive(error)
        else:
            meeting.arrive(None)

    def attempt_in_thread() -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError, ProcessError):  # the connection is closed; nobody waits
            attempt()

    if may_wait:
        thread = threading.Thread(target=attempt_in_thread, daemon=True, name="plait acts with other processes")
        LEFT_BEHIND.add(thread)
        thread.start()
    else:
        attempt()
    failed = meeting.outcome()
    if failed is not None:
        raise own[0] if own else failed
    return results[0]


class Meeting:
    """Where each of several processes says once that it is done, or has failed.

    Args:
        key: its key; if there is none, it gets a number, and all processes create as many in the same order.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key or next_key("meeting")
        arrive(self._key)

    def arrive(self, error: BaseException | None) -> None:
        """Say that this process is done, or what has failed."""
        self.tell(None if error is None else error_to_json(error))

    def outcome(self) -> PlaitError | SystemExit | None:
        """Wait until all are done, or one has failed: the error of the first that did."""
        heard = self.heard()
        return error_from_json(heard) if heard else None

    def tell(self, news: dict[str, Any] | None) -> None:
        """Arrive without news, or with some that all hear at once."""
        if news is not None:
            put_once(f"{self._key}/end", json.dumps(news))
        elif is_last(f"{self._key}/arrived"):
            put_once(f"{self._key}/end", "null")

    def heard(self) -> dict[str, Any] | None:
        """Wait until all have arrived, or one has news: the first news."""
        return json.loads(await_outcome(self._key, "end"))


def error_to_json(error: BaseException) -> dict[str, Any]:
    """An error as JSON data, for other processes."""
    where = jax.process_index()
    if isinstance(error, PlaitError) and error.heard is not None:
        return error.heard
    if isinstance(error, PlaitError) and hasattr(error, "parts"):  # a subclass may not have called __init__
        parts = {name: text[:_LONGEST] for name, text in error.parts.items()}
        return {"kind": type(error).__name__, "message": error.message, "parts": parts, "process": where}
    if isinstance(error, SystemExit) and not error.code:
        return {"kind": _DONE, "message": "", "parts": {}, "process": where}
    parts = {"at": f"process {where}", "found": f"{type(error).__name__}: {text_of(error)}"[:_LONGEST]}
    return {"kind": "ProcessError", "message": f"process {where} failed", "parts": parts, "process": where}


def error_from_json(heard: dict[str, Any]) -> PlaitError | SystemExit:
    """The error of another process; if that has ended with the status 0, what ends this one with it too."""
    if heard["kind"] == _DONE:
        return SystemExit(0)
    kind = getattr(errors, heard["kind"], ProcessError)
    where = f"process {heard['process']}"
    at = heard["parts"].get("at")
    parts = {**heard["parts"], "at": where if at in (None, where) else f"{at}, in {where}"}
    error = kind(heard["message"], **parts)
    error.heard = heard
    return error
