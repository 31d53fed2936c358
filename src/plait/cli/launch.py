"""``plait launch``: several processes of one run on this machine.

Each gets the address of the first and its own number in environment variables, which
``plait.partitioning.connect_processes`` reads. Each line of their output is prefixed with the number of the process. If
one fails, the others are terminated, and the last lines of the one that failed first are repeated. A signal to this
command is forwarded to all of them, and they get time to save. If this command is killed, a guard kills them.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from ..partitioning.processes.connect import ADDRESS, COUNT, HOLDER, check_port
from ..partitioning.processes.launched import FOLDER, GRACE as GRACE_SECONDS, NUMBER, first_in, saving_in
from ..util.words import first_few

# Seconds for a process to exit after another has failed. Its run is lost, so it has nothing to save.
PATIENCE = 5.0
GRACE = 30.0
MOMENT = 0.25
# A closed terminal sends SIGHUP twice (the shell and the kernel), ``timeout`` signals a process and then its group, and
# systemd may send SIGHUP after SIGTERM: within this many seconds of the first they are one request.
ONE_REQUEST = 1.0
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HELD = 100  # lines that wait until they are read
LINES = 20  # of the process that failed first, repeated at the end
# From the threads: the number of a process that has exited, or the error of forwarding its output.
_News: TypeAlias = "queue.Queue[int | OSError]"
_Last: TypeAlias = "collections.deque[bytes]"
_PROXIES, _NO_PROXY = ("grpc_proxy", "https_proxy", "http_proxy"), "no_grpc_proxy"  # of gRPC
_DEVICES = "--xla_force_host_platform_device_count"
# The guard: its input is a pipe, which is closed when this command has gone; then it kills the groups written there.
_GUARD = """
import os, sys
for group in sys.stdin.read().split():
    try:
        os.killpg(int(group), 9)
    except ProcessLookupError:
        pass
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """The processes to start.

    Args:
        command: the program of each process, with its arguments.
        processes: the number of processes.
        devices: CPU devices of each process; ``None`` means those of the machine.
        port: port of the first process; ``None`` means a free one.
        grace: seconds for the processes to exit after a signal, and longer while they write a checkpoint. A second
            signal, after more than a second, kills them at once.
    """

    command: Sequence[str]
    processes: int
    devices: int | None = None
    port: int | None = None
    grace: float = GRACE


def run(options: Options) -> int:
    """Start the processes and wait for them.

    Returns:
        The exit status: that of the first process that failed, 128 plus the number of the signal that ended all, or 0.

    Raises:
        ProcessError: the port is taken. If another run has it, JAX would end that run.
    """
    address = f"127.0.0.1:{options.port or _free_port()}"
    check_port(address)
    news: _News = queue.Queue()  # up to Python 3.12, a signal may make get of a SimpleQueue wait forever
    failed = None
    last: list[_Last] = [collections.deque(maxlen=LINES) for _ in range(options.processes)]
    with (
        _requests_to_end() as requests,
        tempfile.TemporaryDirectory(prefix="plait-launch-") as told,
        _guard() as guard,
    ):
        started: list[subprocess.Popen[bytes]] = []
        readers: list[list[threading.Thread]] = []  # of the output of each
        writers: list[threading.Thread] = []
        try:
            for number in range(options.processes):
                child = subprocess.Popen(
                    options.command,
                    env={**environment(os.environ, options, number, address), FOLDER: told},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # so that its own children can be ended with it
                )
                started.append(child)
                guard.write(f"{child.pid}\n")
                guard.flush()
                own, others = _pass_on(child, f"[{number}] ".encode(), news, last[number], requests)
                readers.append(own)
                writers += others
                threading.Thread(target=_watch, args=(child, number, news), daemon=True).start()
            failed = _wait(started, news, requests)
            if failed is not None and not requests:
                failed = _first_of(failed, started, Path(told))
                _say_who_failed(failed, started)
        except OSError:
            if not requests:  # otherwise what had read the output was ended with this command, as in a pipe
                raise
        finally:
            has_to_save = failed is None or _was_asked(started[failed].returncode)
            _end(started, readers, options.grace if has_to_save else PATIENCE, requests, Path(told))
            deadline = time.monotonic() + PATIENCE
            for thread in [*itertools.chain(*readers), *writers]:
                thread.join(max(deadline - time.monotonic(), 0))
            if failed is not None and options.processes > 1:
                _repeat(failed, last[failed])
        if failed is not None:
            return _status(started[failed].returncode)
        if requests:
            _say("plait: interrupted")
            return 128 + requests[0]
        return 0


def environment(base: Mapping[str, str], options: Options, number: int, address: str) -> dict[str, str]:
    """The environment of one process."""
    found = {**base, ADDRESS: address, COUNT: str(options.processes), NUMBER: str(number), "PYTHONUNBUFFERED": "1"}
    found[GRACE_SECONDS] = f"{options.grace:g}"
    found.pop(HOLDER, None)  # of a run whose process has started this one
    if any(base.get(proxy) for proxy in _PROXIES):  # JAX's connections would go through it, to this machine too
        found[_NO_PROXY] = ",".join([*filter(None, [base.get(_NO_PROXY, base.get("no_proxy"))]), "127.0.0.1"])
    if options.devices is not None:
        others = re.sub(rf"{_DEVICES}=\S*", "", base.get("XLA_FLAGS", ""))
        found["XLA_FLAGS"] = f"{others} {_DEVICES}={options.devices}".strip()
        found["JAX_PLATFORMS"] = "cpu"
        # XLA has as many threads as this, or as cores. A device may be in two collectives at a time, of which each
        # holds a thread until all devices are there.
        found.setdefault("NPROC", str(max(2 * options.devices, os.cpu_count() or 1)))
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def _requests_to_end() -> Iterator[list[int]]:
    """Yield a list to which signals that ask this process to exit are added; they have no other effect meanwhile.

    A closed terminal is such a signal: the children are in their own sessions and would not get it. Signals that the
    caller ignores, such as under ``nohup``, stay ignored.
    """
    received: list[int] = []
    first = 0.0

    def note(number: int, _: Any) -> None:
        nonlocal first
        if not received:
            first = time.monotonic()
        elif time.monotonic() - first < ONE_REQUEST:
            return
        received.append(number)

    heard = [request for request in _REQUESTS if signal.getsignal(request) is not signal.SIG_IGN]
    before = {request: signal.signal(request, note) for request in heard}
    try:
        yield received
    finally:
        for request, handler in before.items():
            signal.signal(request, handler)


@contextmanager
def _guard() -> Iterator[IO[str]]:
    """Start the guard; yield where it reads the numbers of groups."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # so that what kills this command's group does not kill it
    )
    assert guard.stdin is not None
    try:
        yield guard.stdin
    finally:
        guard.kill()
        guard.wait()
        guard.stdin.close()


def _pass_on(
    child: subprocess.Popen[bytes], prefix: bytes, news: _News, last: _Last, requests: Sequence[int]
) -> tuple[list[threading.Thread], list[threading.Thread]]:
    """Threads that read a process's output, and others that write it, with a prefix before each line."""
    readers, writers = [], []
    for source, stream in ((child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer)):
        assert source is not None
        target = getattr(stream, "raw", stream)  # Python, when it ends, waits for whoever writes to the buffer
        lines: queue.Queue[bytes | None] = queue.Queue(HELD)
        arguments = source, lines, prefix, last, requests
        readers.append(threading.Thread(target=_read_lines, args=arguments, daemon=True))
        writers.append(threading.Thread(target=_write_lines, args=(lines, target, news), daemon=True))
    for thread in [*readers, *writers]:
        thread.start()
    return readers, writers


def _read_lines(
    source: IO[bytes], lines: queue.Queue[bytes | None], prefix: bytes, last: _Last, requests: Sequence[int]
) -> None:
    with source:
        # As bytes: the output of the processes may not be valid in this process's encoding.
        for line in source:
            last.append(prefix + line.rstrip(b"\n") + b"\n")
            _put(lines, last[-1], requests)
    lines.put(None)


def _put(lines: queue.Queue[bytes | None], line: bytes, requests: Sequence[int]) -> None:
    """Put a line; wait if nobody reads them, unless the process has to end: it may print before it saves."""
    has_to_end = False
    while not has_to_end:
        has_to_end = bool(requests)
        try:
            lines.put(line, block=not has_to_end, timeout=0.1)
        except queue.Full:
            continue
        return


def _write_lines(lines: queue.Queue[bytes | None], target: IO[bytes], news: _News) -> None:
    is_read = True
    while (line := lines.get()) is not None:
        try:
            while is_read and line:
                written = target.write(line)
                line = line[written or 0 :]
                if not written:  # the caller's pipe is one that does not block
                    time.sleep(0.01)
        except OSError as error:  # the pipe is closed, or the disk is full; the process may go on, and save
            is_read = False
            news.put(error)


def _watch(child: subprocess.Popen[bytes], number: int, news: _News) -> None:
    child.wait()
    news.put(number)


def _wait(started: Sequence[subprocess.Popen[bytes]], news: _News, requests: Sequence[int]) -> int | None:
    """Wait until all have exited, one has failed, or a signal arrives; return the number of the first that failed.

    Raises:
        OSError: the output of the processes cannot be forwarded.
    """
    running = len(started)
    while running and not requests:
        try:
            # With a timeout: a signal may arrive in another thread, and Python handles it only when this thread runs.
            ended = news.get(timeout=0.05)
        except queue.Empty:
            continue
        if isinstance(ended, OSError):
            raise ended
        if started[ended].returncode:
            return _cause(ended, started, news)
        running -= 1
    return None


def _cause(ended: int, started: Sequence[subprocess.Popen[bytes]], news: _News) -> int:
    """The process that failed first: one that was killed may be noticed after those that lost it."""
    deadline = time.monotonic() + MOMENT
    while started[ended].returncode != -signal.SIGKILL and (left := deadline - time.monotonic()) > 0:
        with suppress(queue.Empty):
            other = news.get(timeout=left)
            if isinstance(other, int) and started[other].returncode == -signal.SIGKILL:
                return other
    return ended


def _first_of(failed: int, started: Sequence[subprocess.Popen[bytes]], told: Path) -> int:
    """The process whose error ended the run, if it said so and has failed; ``failed`` otherwise."""
    first = first_in(told)
    if first is None:
        return failed
    with suppress(subprocess.TimeoutExpired):
        started[first].wait(PATIENCE)
    return first if started[first].returncode else failed


def _repeat(number: int, lines: Sequence[bytes]) -> None:
    _say(f"plait: the last lines of process {number}, which failed first:")
    with suppress(OSError):
        for line in lines:
            sys.stderr.buffer.write(line)
        sys.stderr.flush()


def _say(text: str) -> None:
    """Print a line on standard error, if somebody reads it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        for stream in (sys.stdout, sys.stderr):  # Python would fail to flush them at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say_who_failed(number: int, started: Sequence[subprocess.Popen[bytes]]) -> None:
    code = started[number].returncode
    how = f"was killed by signal {-code}{_name_of_signal(-code)}" if code < 0 else f"exited with status {code}"
    gone = [f"process {other}" for other, child in enumerate(started) if child.returncode == 0]
    before = f", after {first_few(gone, 3)} had exited with status 0" if gone else ""
    others = "; the others are terminated" if len(started) - len(gone) > 1 else ""
    _say(f"plait: process {number} of {len(started)} {how}{before}{others}")


def _name_of_signal(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""


def _end(
    started: Sequence[subprocess.Popen[bytes]],
    readers: Sequence[Sequence[threading.Thread]],
    patience: float,
    requests: Sequence[int],
    told: Path,
) -> None:
    """End the remaining processes and their children: terminate, then kill those that write no checkpoint.

    A process that handles SIGTERM gets it alone, and what it has started when it has ended: it may need that to save,
    as a loader of data its workers. If it has not after ``PATIENCE``, they get it as well: a shell may note the signal
    and wait for them. With a process that does not handle it, such as most shells, its whole group gets it at once.
    """
    alone = [child for child in started if child.poll() is None and _handles(child.pid, signal.SIGTERM)]
    for child in alone:
        child.terminate()
    _ask([child for child in started if child not in alone], signal.SIGTERM)
    begun = time.monotonic()
    deadline = begun + patience
    heard = len(requests)
    has_said = False
    while (alive := [*_alive(started, readers)]) and len(requests) == heard:
        if time.monotonic() > deadline:
            slow = sorted(saving_in(told) & {*alive})
            if not slow:
                break
            if not has_said:
                has_said = True
                _say_who_saves(slow, patience)
        time.sleep(0.02)
        late = time.monotonic() > begun + PATIENCE
        asked = [child for child in alone if late or child.poll() is not None]
        alone = [child for child in alone if child not in asked]
        _ask(asked, signal.SIGTERM)
    _ask(started, signal.SIGKILL)
    for child in started:
        child.wait()


def _alive(started: Sequence[subprocess.Popen[bytes]], readers: Sequence[Sequence[threading.Thread]]) -> Iterator[int]:
    """The numbers of those that run. A shell ends at once, and its child, which saves, later: it still has the output.

    A child that nobody waits for stays in the group when it has ended, so that does not say it alone.
    """
    for number, (child, own) in enumerate(zip(started, readers, strict=False)):  # one may not have been started
        with suppress(ProcessLookupError, PermissionError):  # its group has no process that is not over
            if child.poll() is None or (any(thread.is_alive() for thread in own) and not os.killpg(child.pid, 0)):
                yield number


def _say_who_saves(numbers: Sequence[int], patience: float) -> None:
    who = (
        f"process {numbers[0]} still saves after {patience:g} s and is"
        if len(numbers) == 1
        else f"processes {first_few([str(each) for each in numbers], 5)} still save after {patience:g} s and are"
    )
    _say(f"plait: {who} waited for; another Ctrl-C or SIGTERM ends all at once")


def _ask(started: Sequence[subprocess.Popen[bytes]], request: signal.Signals) -> None:
    for child in started:
        with suppress(ProcessLookupError):  # its session has no process left
            os.killpg(child.pid, request)


def _handles(pid: int, request: signal.Signals) -> bool:
    """Whether the process has a handler for the signal; only Linux tells."""
    with suppress(OSError):
        caught = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (request - 1) & 1)
    return False


def _was_asked(code: int) -> bool:
    """Whether a process ended because somebody asked it to, and so the run: it has not failed, and all may save."""
    return _status(code) - 128 in _REQUESTS


def _status(code: int) -> int:
    """The exit status that a shell would give."""
    return code if code >= 0 else 128 - code
