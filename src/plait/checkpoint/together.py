"""Collective operations of several processes: process 0 acts, and all receive its result or its error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from .. import errors
from ..errors import PlaitError, ProcessError

T = TypeVar("T", bound=str | None)

# The size of the message in bytes: enough for the parts of an error, even if JSON escapes every letter as six.
_ROOM = 1 << 17
_LONGEST = 4_000


def on_first(act: Callable[[], T]) -> T:
    """Let process 0 act; every process returns its text or its ``None``, or raises its error.

    All processes must call it. With one process this is a plain call.
    """
    if jax.process_count() == 1:
        return act()
    caught: BaseException | None = None
    outcome: dict[str, object] = {}
    if jax.process_index() == 0:
        try:
            outcome = {"text": act()}
        except Exception as error:
            caught, outcome = error, _told(error)
    heard = _broadcast(outcome)
    if caught is not None:
        raise caught
    if "text" in heard:
        return heard["text"]
    kind = getattr(errors, heard["kind"], ProcessError)
    raise kind(heard["message"], **heard["parts"])


def wait_for_all(what: str) -> None:
    """Wait until all processes have reached this call."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(f"plait {what}")


def _told(error: Exception) -> dict[str, object]:
    if isinstance(error, PlaitError):
        parts = {name: text[:_LONGEST] for name, text in error.parts.items()}
        return {"kind": type(error).__name__, "message": error.message, "parts": parts}
    parts = {"at": "process 0", "found": f"{type(error).__name__}: {error}"[:_LONGEST]}
    return {"kind": "ProcessError", "message": "process 0 failed in a collective operation", "parts": parts}


def _broadcast(outcome: dict[str, object]) -> dict[str, Any]:
    from jax.experimental import multihost_utils

    room = np.zeros(_ROOM, np.uint8)
    text = json.dumps(outcome).encode()
    room[: len(text)] = np.frombuffer(text, np.uint8)
    told = np.asarray(multihost_utils.broadcast_one_to_all(room))
    return json.loads(told.tobytes().partition(b"\0")[0])  # JSON escapes a NUL
