"""What process 0 does for all. Real processes are in tests/partitioning/test_many_processes.py."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from plait.checkpoint.together import on_first, wait_for_all
from plait.errors import CheckpointError, PlaitError, ProcessError

PARTS = {"at": "run/step-1", "found": "Größe \u2192 0", "expected": "more", "do": "wait"}


class OwnError(PlaitError):
    """Not one of ``plait.errors``, so that other processes cannot make one."""


def fail(error):
    def act():
        raise error

    return act


def outcome(act):
    try:
        return on_first(act)
    except Exception as error:
        return error


def by_two_processes(act, monkeypatch):
    """What each of two processes gets, run one after the other: the second hears the bytes that the first told."""
    told = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    def broadcast(room):
        if jax.process_index():
            return told[0]
        told.append(room.copy())
        return room

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    outcomes = []
    for index, does in enumerate((act, fail(AssertionError("only process 0 acts")))):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
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
    "one of plait's": (CheckpointError("damaged", **PARTS), CheckpointError, "damaged", PARTS),
    "without parts": (CheckpointError("damaged"), CheckpointError, "damaged", {}),
    "with long parts": (
        CheckpointError("damaged", at="a", found="y" * 9_000),
        CheckpointError,
        "damaged",
        {"at": "a", "found": "y" * 4_000},
    ),
    "of another module": (OwnError("own", **PARTS), ProcessError, "own", PARTS),
    "of Python": (
        OSError("disk full"),
        ProcessError,
        "process 0 failed in a collective operation",
        {"at": "process 0", "found": "OSError: disk full"},
    ),
    "of Python, and long": (
        ValueError("z" * 9_000),
        ProcessError,
        "process 0 failed in a collective operation",
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
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", fail(AssertionError("nobody listens")))
    error = OSError("disk full")
    assert (on_first(lambda: "text"), outcome(fail(error))) == ("text", error)


def test_what_is_told_has_one_size_for_all(monkeypatch):
    """A broadcast needs arrays of one shape, before anybody knows what will be told."""
    shapes = set()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        multihost_utils, "broadcast_one_to_all", lambda room: shapes.add((room.shape, room.dtype)) or room
    )
    for text in ("", "x" * 1_000):
        on_first(lambda text=text: text)
    ((shape, dtype),) = shapes
    assert (len(shape), dtype) == (1, np.uint8)


def test_a_barrier_has_the_name_of_what_is_waited_for(monkeypatch):
    """Processes at different barriers find out: JAX compares the names."""
    names = []
    monkeypatch.setattr(multihost_utils, "sync_global_devices", names.append)
    wait_for_all("positions")  # alone
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    wait_for_all("positions")
    assert names == ["plait positions"]
