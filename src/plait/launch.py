"""``plait launch``: several processes of one run on this machine.

Each gets the address of the first and its own number in the environment, where
``plait.partitioning.connect_processes`` finds them. Their output comes out line by line, behind the number of the
process. When one fails, the others are ended. When this command is asked to end, it asks all of them, and gives them
time to save.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeAlias

from .partitioning.processes import ADDRESS, COUNT, NUMBER

# How long a process may take to end once another has failed, in seconds. It has lost its run, and has nothing to save.
PATIENCE = 5.0
GRACE = 30.0
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
        grace: seconds that the processes may take to end after a request to end. A second request ends them at once.
    """

    command: Sequence[str]
    processes: int
    devices: int | None = None
    port: int | None = None
    grace: float = GRACE


def run(options: Options) -> int:
    """Start the processes and wait for them.

    Returns:
        The exit status: that of the first process that failed, 128 and the number of the signal that ended all, or 0.
    """
    address = f"127.0.0.1:{options.port or _free_port()}"
    news: _News = queue.SimpleQueue()
    failed = None
    with _requests_to_end() as requests:
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
            failed = _wait(started, news, requests)
            if failed is not None:
                _say_who_failed(failed, started[failed].returncode, options.processes)
        finally:
            _end(started, options.grace if requests and failed is None else PATIENCE, requests)
            for reader in readers:
                reader.join(PATIENCE)
        if failed is not None:
            return _status(started[failed].returncode)
        if requests:
            print("plait: interrupted", file=sys.stderr, flush=True)
            return 128 + requests[0]
        return 0


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
def _requests_to_end() -> Iterator[list[int]]:
    """The signals by which this process is asked to end, as they come. They do nothing else meanwhile.

    A closed terminal is such a request: the children are in sessions of their own and would not hear of it. What the
    caller ignores, such as under ``nohup``, stays ignored.
    """
    received: list[int] = []

    def note(number: int, _: Any) -> None:
        received.append(number)

    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [request for request in requests if signal.getsignal(request) is not signal.SIG_IGN]
    before = {request: signal.signal(request, note) for request in heard}
    try:
        yield received
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


def _wait(started: Sequence[subprocess.Popen[bytes]], news: _News, requests: Sequence[int]) -> int | None:
    """Wait until all are done, one has failed, or all are to end; returns the number of the first that failed.

    Raises:
        OSError: what the processes write cannot be passed on.
    """
    running = len(started)
    while running and not requests:
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


def _end(started: Sequence[subprocess.Popen[bytes]], patience: float, requests: Sequence[int]) -> None:
    """End what still runs, and what it started: politely, then not."""
    _ask(started, signal.SIGTERM)
    deadline = time.monotonic() + patience
    heard = len(requests)
    while any(child.poll() is None for child in started) and time.monotonic() < deadline and len(requests) == heard:
        time.sleep(0.02)
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
