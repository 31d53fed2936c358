"""A notice in each process that process 0 does not answer: it is stopped, or cut off from the network.

JAX ends a process whose heartbeats are not answered, within the heartbeat's time-out, with a stack trace and the guess
that another task has died. This says which one, and that it may come back, before that happens.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time

import jax

from ...errors import ProcessError
from .key_value_store import await_entry, put_once

_KEY = "plait/answers"


def watch_coordinator(heartbeat: float) -> None:
    """Ask process 0 for an answer four times in the time-out of a heartbeat, in a thread, until the program ends."""
    if jax.process_index() == 0:
        put_once(_KEY, "")
        return
    is_over = threading.Event()
    thread = threading.Thread(
        target=_ask_until, args=(is_over, heartbeat), daemon=True, name="plait listens to process 0"
    )
    thread.start()

    def stop() -> None:  # before JAX closes the connection
        is_over.set()
        thread.join(heartbeat / 4)

    atexit.register(stop)


def _ask_until(is_over: threading.Event, heartbeat: float) -> None:
    each, silent_since = heartbeat / 4, None
    while not is_over.wait(each if silent_since is None else 0):
        asked = time.monotonic()
        try:
            answer = await_entry(_KEY, each, each=each)
        except (jax.errors.JaxRuntimeError, ProcessError):  # the connection is closed; JAX or the program says why
            return
        if answer is None and silent_since is None and not is_over.is_set():
            silent_since = asked
            _say(_silence(each, heartbeat))
        elif answer is not None and silent_since is not None:
            _say(f"process 0 answers again, after {time.monotonic() - silent_since:.0f} s")
            silent_since = None


def _silence(seconds: float, heartbeat: float) -> ProcessError:
    return ProcessError(
        "process 0, which coordinates this run, does not answer",
        at=f"process {jax.process_index()} of {jax.process_count()}",
        found=f"no answer for {seconds:g} s: process 0 is stopped, or the network between the two is gone",
        expected=f"an answer within {heartbeat:g} s, the time-out of a heartbeat; then JAX ends this process",
        do="look at process 0 and its machine; then resume from the newest checkpoint",
    )


def _say(text: object) -> None:
    print(f"\nplait: {text}", file=sys.stderr, flush=True)
