"""``plait launch``: several processes of one run on this machine.

Each gets the address of the first and its own number in the environment, where
``plait.partitioning.connect_processes`` finds them. Their output comes out line by line, behind the number of the
process. When one fails, the others are ended.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeAlias

from .partitioning.processes import ADDRESS, COUNT, NUMBER

# How long a process may take to end after it was asked to, in seconds.
PATIENCE = 5.0
# From the threads: the number of a process that has ended, or why its output cannot be passed on.
_News: TypeAlias = "queue.SimpleQueue[int | OSError]"
_DEVICES = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class Options:
    """What to start.

    Args:
        command: the program of each process, with its arguments.
        processes: how many.
        devices: CPU devices that each process shall see, or ``None`` for those that the machine has.
        port: where the first process listens, or ``None`` for a free one.
    """

    command: Sequence[str]
    processes: int
    devices: int | None = None
    port: int | None = None


def run(options: Options) -> int:
    """Start the processes, wait for them, and return the exit status: that of the first that failed, or 0."""
    address = f"127.0.0.1:{options.port or _free_port()}"
    news: _News = queue.SimpleQueue()
    with _interruptible() as no_more_interruptions:
        started: list[subprocess.Popen[bytes]] = []
        readers: list[threading.Thread] = []
        try:
            for number in range(options.processes):
                child = subprocess.Popen(
                    options.command,
                    env=environment(os.environ, options, number, address),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # so that what it starts itself can be ended with it
                )
                started.append(child)
                readers += _pass_on(child, f"[{number}] ".encode(), news)
                threading.Thread(target=_watch, args=(child, number, news), daemon=True).start()
            failed = _wait(started, news)
            if failed is not None:
                _say_who_failed(failed, started[failed].returncode, options.processes)
        finally:
            no_more_interruptions()  # a second Ctrl-C would leave processes behind
            _end(started)
            for reader in readers:
                reader.join(PATIENCE)
    return 0 if failed is None else _status(started[failed].returncode)


def environment(base: Mapping[str, str], options: Options, number: int, address: str) -> dict[str, str]:
    """The environment of one process."""
    found = {**base, ADDRESS: address, COUNT: str(options.processes), NUMBER: str(number), "PYTHONUNBUFFERED": "1"}
    if options.devices is not None:
        others = re.sub(rf"{_DEVICES}=\S*", "", base.get("XLA_FLAGS", ""))
        found["XLA_FLAGS"] = f"{others} {_DEVICES}={options.devices}".strip()
        found["JAX_PLATFORMS"] = "cpu"
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let a request to end this process interrupt it as Ctrl-C does, so that its children are ended too.

    A closed terminal is such a request: the children are in sessions of their own and would not hear of it. What the
    caller ignores, such as under ``nohup``, stays ignored. Yields a function after which all requests are ignored.
    """

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def ignore() -> None:
        for request in heard:
            signal.signal(request, signal.SIG_IGN)

    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [request for request in requests if signal.getsignal(request) is not signal.SIG_IGN]
    before = {request: signal.signal(request, interrupt) for request in heard}
    try:
        yield ignore
    finally:
        for request, handler in before.items():
            signal.signal(request, handler)


def _pass_on(child: subprocess.Popen[bytes], prefix: bytes, news: _News) -> list[threading.Thread]:
    """Threads that write what a process writes, with a prefix before each line."""
    pairs = [(child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer)]
    threads = [threading.Thread(target=_copy_lines, args=(*pair, prefix, news), daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads


def _copy_lines(source: IO[bytes], target: IO[bytes], prefix: bytes, news: _News) -> None:
    with source:
        try:
            # As bytes: the processes may write what the encoding of this one's output does not have.
            for line in source:
                target.write(prefix + line.rstrip(b"\n") + b"\n")
                target.flush()
        except OSError as error:  # the reader has gone away, or the disk is full
            news.put(error)


def _watch(child: subprocess.Popen[bytes], number: int, news: _News) -> None:
    child.wait()
    news.put(number)


def _wait(started: Sequence[subprocess.Popen[bytes]], news: _News) -> int | None:
    """Wait until all are done, or one has failed; returns the number of the first that failed.

    Raises:
        OSError: what the processes write cannot be passed on.
    """
    running = len(started)
    while running:
        try:
            # Not without a limit: a signal may arrive in another thread, and is heard when this one does something.
            ended = news.get(timeout=0.05)
        except queue.Empty:
            continue
        if isinstance(ended, OSError):
            raise ended
        if started[ended].returncode:
            return ended
        running -= 1
    return None


def _say_who_failed(number: int, code: int, processes: int) -> None:
    how = f"was ended by signal {-code}{_name_of_signal(-code)}" if code < 0 else f"ended with status {code}"
    others = "; the others are ended too" if processes > 1 else ""
    print(f"plait: process {number} of {processes} {how}{others}", file=sys.stderr, flush=True)


def _name_of_signal(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, and what it started: politely, then not."""
    _ask(started, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    for child in started:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    _ask(started, signal.SIGKILL)
    for child in started:
        child.wait()


def _ask(started: Sequence[subprocess.Popen[bytes]], request: signal.Signals) -> None:
    for child in started:
        with suppress(ProcessLookupError):  # nobody is left in its session
            os.killpg(child.pid, request)


def _status(code: int) -> int:
    """The exit status that a shell would give."""
    return code if code >= 0 else 128 - code
