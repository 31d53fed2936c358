"""Many processes as one run: connecting them, and a clear end when one is lost.

Every process of a run executes the same program; JAX's distributed runtime joins their devices. A process notices that
another has ended in one of two ways: a collective of both fails, or the other's heartbeats stop. The first is a Python
error, which gets a readable message here; after the second, JAX itself ends the process, with a message that another
task has most likely died.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import jax

from ...errors import ProcessError
from ...util.jax_versions import in_cluster
from .key_value_store import barrier
from .launched import NUMBER, tell_first

E = TypeVar("E", bound=BaseException)

ADDRESS = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
HOLDER = "PLAIT_CONNECTED"  # the process that has the place of these variables, and the place

# Texts of JAX's errors when another process is gone: from the collective library, or from the coordination service.
_SIGNS_OF_LOSS = ("gloo", "connection reset", "connection closed", "heartbeat", "coordination", "another task")


def connect_processes(
    *,
    heartbeat_timeout_seconds: int = 20,
    initialization_timeout_seconds: int = 300,
    shutdown_timeout_seconds: int = 30,
) -> int:
    """Connect to the other processes of this run, if there are any; call it before JAX has used a device.

    ``plait launch`` sets ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``; elsewhere set these
    yourself, or leave it to JAX, which detects Slurm, Open MPI, Kubernetes and Cloud TPU. Without any of these, the
    process is the whole run, and nothing happens.

    From then on, an uncaught error ends this process at once, without waiting for the others, so that they notice; and
    an error caused by the loss of another process says so. SIGTERM does what it did before the call, until ``fit``
    handles it; JAX's ``reached_preemption_sync_point`` does not hear of it.

    Args:
        heartbeat_timeout_seconds: how long a process may be silent before the others consider it lost.
        initialization_timeout_seconds: how long to wait for the other processes.
        shutdown_timeout_seconds: how long a process that has finished waits for the others. JAX ends the run then, so
            give more if one of them works longer than the others at the end, such as on an export.

    Returns:
        The number of processes.

    Raises:
        ProcessError: the environment variables contradict each other, JAX has already used a device, the port of
            process 0 is taken, or a process of the run has started this one with its own environment, such as a worker
            of its data: JAX would end the run. If the other processes do not connect in time, JAX itself ends this
            one, with its own message and stack trace.

    Example:
        >>> plait.partitioning.connect_processes()
        1
    """
    if jax.distributed.is_initialized():
        return jax.process_count()
    found = _from_environment(os.environ)
    if found.get("num_processes") == 1 or not (found or in_cluster()):
        return 1
    place = _place(os.environ)
    _check_holder(place)
    if found.get("process_id") == 0:
        check_port(found["coordinator_address"])
    try:
        jax.distributed.initialize(
            **found,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            initialization_timeout=initialization_timeout_seconds,
            shutdown_timeout_seconds=shutdown_timeout_seconds,
        )
    except RuntimeError as error:
        raise _not_connected(error, found) from error
    os.environ[HOLDER] = f"{os.getpid()} {place}"
    _take_back(signal.SIGTERM)
    _end_at_once_on_errors()
    return jax.process_count()


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The environment variables as arguments of ``jax.distributed.initialize``; empty if none is set."""
    if COUNT not in environment and NUMBER not in environment:
        return {}
    missing = [name for name in (ADDRESS, COUNT, NUMBER) if name not in environment]
    numbers = {name: environment[name] for name in (COUNT, NUMBER) if name in environment}
    wrong = [f"{name}={text}" for name, text in numbers.items() if not text.isdigit()]
    if not missing and not environment[ADDRESS].rpartition(":")[2].isdigit():
        wrong.append(ADDRESS)
    if missing or wrong or not int(numbers[NUMBER]) < int(numbers[COUNT]):
        raise ProcessError(
            "the environment variables that identify this process contradict each other",
            found=", ".join(f"{name}={environment.get(name, 'not set')}" for name in (ADDRESS, COUNT, NUMBER)),
            expected=f"the address and port of process 0, a number of processes, and a {NUMBER} from 0 to one less",
            do="start the processes with: plait launch --processes 2 -- python program.py",
        )
    return {
        "coordinator_address": environment[ADDRESS],
        "num_processes": int(numbers[COUNT]),
        "process_id": int(numbers[NUMBER]),
    }


def _place(environment: Mapping[str, str]) -> str:
    """The place in a run that these variables give to a process."""
    return " ".join(f"{name}={environment[name]}" for name in (ADDRESS, COUNT, NUMBER) if name in environment)


def _check_holder(place: str) -> None:
    """Raise if a process that has inherited the variables of another would connect as that one: JAX ends all then."""
    holder, _, taken = os.environ.get(HOLDER, "").partition(" ")
    if not holder.isdigit() or taken != place or int(holder) == os.getpid() or not _is_there(int(holder)):
        return
    raise ProcessError(
        "this process was started by one of a run, and would take its place",
        at=f"process {os.getpid()} of the system",
        found=f"process {holder}, which is connected and runs{f', with {place}' if place else ''}",
        expected="one process for each place",
        do="for workers of the data: call connect_processes() in the function that is called below "
        "if __name__ == '__main__'; for another program: start it with an environment without JAX_COORDINATOR_ADDRESS, "
        "JAX_NUM_PROCESSES and JAX_PROCESS_ID",
    )


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def check_port(address: str) -> None:
    """Raise if the port is in use: JAX (0.10.2) may then end the process without a message."""
    try:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()
    except (OSError, OverflowError) as error:
        raise ProcessError(
            "the processes of this run cannot be connected",
            at="process 0, which is to listen",
            found=f"{ADDRESS}={address}: {getattr(error, 'strerror', None) or error}",
            expected="a free port",
            do="choose another port: plait launch --port N, or another in JAX_COORDINATOR_ADDRESS",
        ) from error


def _not_connected(error: RuntimeError, found: Mapping[str, Any]) -> ProcessError:
    early = "before" in str(error)
    return ProcessError(
        "the processes of this run cannot be connected",
        at=f"process {found['process_id']} of {found['num_processes']}" if found else None,
        found=str(error).partition("\n")[0],
        expected="to be called before JAX uses a device" if early else "all processes, within the timeout",
        do="make connect_processes() the first thing of the program"
        if early
        else "look at the other processes' output",
    )


def _take_back(number: signal.Signals) -> None:
    """Have a signal do again what it did before JAX, unknown to Python, has put a handler of its own in the place.

    That handler notes SIGTERM for programs that ask for it at each step, and does nothing else: one that arrived before
    ``fit`` was lost, and the run went on until it was killed.
    """
    before = signal.getsignal(number)
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, before)


def _end_at_once_on_errors() -> None:
    """End the process on an uncaught error, without waiting for the others at the end of the program.

    The others may be waiting for this one in a collective, and notice only when it has ended.
    """
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        before(kind, error, traceback)
        here = jax.process_index()
        if is_loss(error):
            with contextlib.suppress(OSError):  # nobody reads it: what has started this process may be gone
                print(f"\nplait: {lost_process(error)}", file=sys.stderr)
        if not is_loss(error) and (getattr(error, "heard", None) or {"process": here})["process"] == here:
            tell_first(here)
        _end(130 if issubclass(kind, KeyboardInterrupt) else 1, getattr(error, "raised_by_all", False))

    sys.excepthook = report


def _end(status: int, do_all_report: bool) -> NoReturn:
    """End the process without waiting for the others, but to print their errors, if all have one."""
    for finish in BEFORE_THE_END:
        finish()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if do_all_report:
        _let_all_report()
    os._exit(status)


def all_report(error: E) -> E:
    """Mark an error with which all processes end: all print it before process 0, when it ends, ends the others."""
    object.__setattr__(error, "raised_by_all", True)  # also of a frozen dataclass
    return error


def _let_all_report() -> None:
    """Wait until all processes have printed their error: process 0, when it ends, ends the others."""
    barrier("plait: all have reported", seconds=5)
    if jax.process_index() == 0:
        time.sleep(0.5)


# What a process does before it ends at once: a checkpoint that is being written is finished.
BEFORE_THE_END: list[Callable[[], object]] = []


# Threads that may wait for a process that does not come.
LEFT_BEHIND: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _free_those_left_behind() -> None:
    """End the connection, which wakes them, before Python ends, which would abort the process for those that wait."""
    waiting = [thread for thread in tuple(LEFT_BEHIND) if thread.is_alive()]
    if waiting:
        jax.distributed.shutdown()
        for thread in waiting:
            thread.join(5)


def end_at_once(error: BaseException) -> NoReturn:
    """End the process as an uncaught error in its main thread does."""
    if isinstance(error, SystemExit):
        _end(_status(error), True)
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)


def end_at_exit(error: SystemExit) -> None:
    """Let ``sys.exit``, which has ended the others too, end this process with its status: JAX would abort it."""
    if _status(error):
        tell_first(jax.process_index())
    atexit.register(_end, _status(error), True)


def _status(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def is_loss(error: BaseException) -> bool:
    """Whether an error was caused by the loss of another process."""
    return isinstance(error, jax.errors.JaxRuntimeError) and any(sign in str(error).lower() for sign in _SIGNS_OF_LOSS)


def lost_process(error: BaseException) -> ProcessError:
    """A readable error for a process that lost another, or has waited for it for too long."""
    what = "has ended or is late" if "DEADLINE_EXCEEDED" in str(error) else "has ended"
    return ProcessError(
        f"another process of this run {what}, and this one cannot continue without it",
        at=f"process {jax.process_index()} of {jax.process_count()}",
        found=str(error).partition("\n")[0][:200],
        expected="all processes, until the end of the run",
        do="look at the output of the process that ended first; then resume from the last checkpoint, with any number "
        "of processes",
    )
