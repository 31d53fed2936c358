"""Short texts that the processes of a run leave for each other, kept by the process that coordinates them.

Each entry has a key, and does not change once it is posted. Reading and posting take a request to process 0, and no
device: they work while a step runs, or while this process waits for another inside one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from typing import Any

import jax

from ...errors import ProcessError, ProcessWarning
from ...util.jax_versions import coordinator
from ...util.notices import warn
from ...util.words import first_few

_SLICE = 0.2  # seconds
_LATE = 60.0  # seconds


def put_once(key: str, text: str) -> bool:
    """Post an entry. Return whether it is new: of several processes, the first to post a key wins."""
    try:
        _store().key_value_set(key, text)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" in str(error):
            return False
        raise
    return True


def await_entry(key: str, seconds: float | None = None, *, each: float = _SLICE) -> str | None:
    """Wait for an entry, and return its text; ``None`` if it was not posted within ``seconds``.

    Args:
        each: seconds of one request. Python handles signals between two of them.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        try:
            return _store().blocking_key_value_get(key, int(1000 * each))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
    return None


def entries_under(key: str) -> list[str]:
    """The texts of all entries whose keys begin with ``key/``."""
    return [text for _, text in _store().key_value_dir_get(f"{key}/")]


def remove(key: str) -> None:
    """Remove the entries and the counts under ``key/``, which nobody will ask for: the coordinator holds all others."""
    _store().key_value_delete(f"{key}/")


def is_last(key: str) -> bool:
    """Count this call. Return whether all processes have made it by now."""
    return _store().key_value_increment(key, 1) == jax.process_count()


def arrive(key: str, text: str = "") -> None:
    """Say that this process has come to what all do together under this key, and leave a text."""
    here = jax.process_index()
    put_once(f"{key}/given/{here}", json.dumps([here, text]))


def await_outcome(key: str, entry: str) -> str:
    """Wait for the entry ``key/entry``, and return its text; warn once of processes that have not come for a minute."""
    text = await_entry(f"{key}/{entry}", _LATE)
    if text is None:
        absent = {*range(jax.process_count())} - {number for number, _ in _given(key)}
        if absent:
            _warn_of(first_few([str(number) for number in sorted(absent)], 4))
        text = await_entry(f"{key}/{entry}")
    return text or ""


def gather(key: str, text: str) -> list[str]:
    """Wait until all processes have called this with the same key; return their texts, that of process 0 first."""
    arrive(key, text)
    if is_last(f"{key}/all"):
        put_once(f"{key}/texts", json.dumps([each for _, each in _given(key)]))
    return json.loads(await_outcome(key, "texts"))


def _given(key: str) -> list[list[Any]]:
    """The processes that have come, and their texts."""
    return sorted(map(json.loads, entries_under(f"{key}/given")))


@functools.cache  # once for the same processes
def _warn_of(absent: str) -> None:
    warn(
        ProcessWarning,
        "this process waits for others, which have not come to what all processes do together",
        at=f"process {jax.process_index()}",
        found=f"nothing of process {absent} for {_LATE:.0f} s",
        expected="the same saves, restores and runs in all processes, one after the other",
        do="call checkpoint.save, Checkpoints, fit, and what else works on global arrays in every process, not only "
        "where jax.process_index() == 0; if that process only takes longer, wait",
    )


def barrier(name: str, seconds: float) -> None:
    """Wait until all processes have called this with the same name, or the time is over."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _store().wait_at_barrier(name, int(1000 * seconds))


def _store() -> Any:
    found = coordinator()
    if found is None:
        raise ProcessError(
            "this process is one of several, but not connected to the one that coordinates them",
            found="devices of several processes, and no call of jax.distributed.initialize",
            expected="a connection, made before JAX uses a device",
            do="make plait.partitioning.connect_processes() the first thing of the program",
        )
    return found
