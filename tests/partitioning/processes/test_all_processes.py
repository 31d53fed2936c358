"""What process 0 does for all. Real processes are in tests/partitioning/test_many_processes.py."""

import dataclasses
import itertools
import threading
import time

import jax
import pytest

from plait.errors import CheckpointError, PlaitError, ProcessError
from plait.partitioning.processes import all_processes, key_value_store
from plait.partitioning.processes.all_processes import Meeting, run_on_all, run_on_process_0
from plait.partitioning.processes.connect import all_report

PARTS = {"at": "run/step-1", "found": "Größe \u2192 0", "expected": "more", "do": "wait"}
OF_FIRST = {**PARTS, "at": "run/step-1, in process 0"}


class OwnError(PlaitError):
    """Not one of ``plait.errors``, so that other processes cannot make one."""


class Board:
    """A key-value store in this process, for two that take turns."""

    def __init__(self, monkeypatch):
        self.texts, self.counts, self.index = {}, {}, 0
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: self.index)
        monkeypatch.setattr(all_processes, "_NUMBERS", itertools.count())
        for user in (all_processes, key_value_store):
            monkeypatch.setattr(user, "put_once", lambda key, text: self.texts.setdefault(key, text) is text)
            monkeypatch.setattr(user, "is_last", self.is_last)
        monkeypatch.setattr(key_value_store, "await_entry", self.await_entry)

    def await_entry(self, key, seconds):
        deadline = time.monotonic() + 20
        while key not in self.texts and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.texts[key]

    def is_last(self, key):
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key] == 2


def fail(error):
    def act():
        raise error

    return act


def outcome(act):
    try:
        return run_on_process_0(act)
    except Exception as error:
        return error


def by_two_processes(act, monkeypatch):
    """What each of two processes gets, run one after the other: the second reads what the first has posted."""
    board = Board(monkeypatch)
    outcomes = []
    for index, does in enumerate((act, fail(AssertionError("only process 0 acts")))):
        monkeypatch.setattr(all_processes, "_NUMBERS", itertools.count())
        board.index = index
        outcomes.append(outcome(does))
    return outcomes


TEXTS = {
    "nothing": None,
    "empty": "",
    "a path": "run/step-1",
    "other letters": "Größe\n\u2192\0 0",
    "NULs": "\0\0",
    "long": "x" * 20_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_all_get_the_text_of_the_first(text, monkeypatch):
    assert by_two_processes(lambda: text, monkeypatch) == [text, text]


# The error of process 0, and what another process raises: its class, its message, its parts.
ERRORS = {
    "one of plait's": (CheckpointError("damaged", **PARTS), CheckpointError, "damaged", OF_FIRST),
    "without parts": (CheckpointError("damaged"), CheckpointError, "damaged", {"at": "process 0"}),
    "with long parts": (
        CheckpointError("damaged", at="a", found="y" * 9_000),
        CheckpointError,
        "damaged",
        {"at": "a, in process 0", "found": "y" * 4_000},
    ),
    "of another module": (OwnError("own", **PARTS), ProcessError, "own", OF_FIRST),
    "of Python": (
        OSError("disk full"),
        ProcessError,
        "process 0 failed",
        {"at": "process 0", "found": "OSError: disk full"},
    ),
    "of Python, and long": (
        ValueError("z" * 9_000),
        ProcessError,
        "process 0 failed",
        {"at": "process 0", "found": f"ValueError: {'z' * 9_000}"[:4_000]},
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_all_raise_the_error_of_the_first(case, monkeypatch):
    error, kind, message, parts = ERRORS[case]
    first, second = by_two_processes(fail(error), monkeypatch)
    assert first is error
    assert (type(second), second.message) == (kind, message)
    assert {name: text for name, text in second.parts.items() if text} == parts


def test_alone_it_is_a_plain_call(monkeypatch):
    monkeypatch.setattr(key_value_store, "put_once", fail(AssertionError("nobody listens")))
    error = OSError("disk full")
    assert (run_on_process_0(lambda: "text"), outcome(fail(error))) == ("text", error)
    assert run_on_all(lambda: None) is None
    with pytest.raises(OSError, match="disk full"):
        run_on_all(fail(error))


def test_an_error_of_any_process_is_that_of_all_at_once(monkeypatch):
    """Nobody waits for the others: the second has not come yet."""
    board = Board(monkeypatch)
    board.index = 1
    with pytest.raises(OSError, match="disk full"):
        run_on_all(fail(OSError("disk full")))
    monkeypatch.setattr(all_processes, "_NUMBERS", itertools.count())
    board.index = 0
    with pytest.raises(ProcessError, match=r"process 1 failed(?s:.*)OSError: disk full"):
        run_on_all(lambda: None)


def test_who_waits_for_a_process_that_has_failed_is_left_behind(monkeypatch):
    """As in a barrier of Orbax, which nobody leaves before all are there. (issue O)"""
    board, leaves = Board(monkeypatch), threading.Event()
    board.index = 1
    with pytest.raises(OSError, match="disk full"):
        run_on_all(fail(OSError("disk full")), may_wait=True)
    monkeypatch.setattr(all_processes, "_NUMBERS", itertools.count())
    board.index = 0
    with pytest.raises(ProcessError, match=r"process 1 failed(?s:.*)OSError: disk full"):
        run_on_all(leaves.wait, may_wait=True)
    leaves.set()


def test_an_error_that_was_told_is_told_on_as_it_was(monkeypatch):
    board = Board(monkeypatch)
    board.index = 1
    heard = all_processes.error_to_json(CheckpointError("damaged", **PARTS))
    board.index = 0
    assert all_processes.error_to_json(all_processes.error_from_json(heard)) == heard


def test_all_go_on_when_all_have_acted(monkeypatch):
    board = Board(monkeypatch)
    meetings = [Meeting()]
    meetings[0].arrive(None)
    assert not any(key.endswith("/end") for key in board.texts)
    monkeypatch.setattr(all_processes, "_NUMBERS", itertools.count())
    Meeting().arrive(None)
    assert meetings[0].outcome() is None


def test_errors_of_any_class_are_told():
    """A subclass need not call ``__init__``, and may be a frozen dataclass."""

    class Bare(PlaitError):
        def __init__(self, number):
            Exception.__init__(self, f"number {number}")

    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        number: int

    found = all_processes.error_to_json(Bare(3))
    assert (found["kind"], found["parts"]["found"].partition(":")[0]) == ("ProcessError", "Bare")
    assert vars(all_report(Frozen(3)))["raised_by_all"] is True
