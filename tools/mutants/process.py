"""A process that has loaded what all tests need, and forks for each run of them.

The copy of the tree is its working directory. It loads JAX, but not plait: each child loads plait anew, with the fault.
No backend of JAX is started before a fork, so there are no threads that a fork would lose.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DATA = 8 * 2**30  # bytes that a run may come to, lest an endless loop fill the machine
ALONE = [
    "-p", "no:cacheprovider", "-q", "--no-header",
    "-W", "ignore:Module already imported so cannot be rewritten",
]  # fmt: skip
FAST, SLOW = "not slow", "slow and (sampled or not long) and not browser"


class Outcomes:
    """A plugin of pytest: which tests failed, the first one alone too, and how long each file took."""

    def __init__(self) -> None:
        self.failed = ""
        self.failures: list[str] = []
        self.seconds: dict[str, float] = {}
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.failed = self.failed or report.nodeid
            self.failures.append(report.nodeid)

    def pytest_keyboard_interrupt(self) -> None:
        """A fault may leave a signal to the tests; the terminal's do not reach this process."""
        self.failed = self.failed or "an interrupt"

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid or "while collecting"


def serve(preload: Sequence[str]) -> None:
    """Answer requests from the standard input, one line of JSON each, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    plugins = [point.module for point in importlib.metadata.entry_points(group="pytest11")]
    for name in ("pytest", *plugins, *preload):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


def run(
    tests: list[str],
    output: str,
    seconds: float,
    each: float,
    file: str = "",
    source: str = "",
    watched: str = "",
    marked: str = FAST,
) -> dict[str, Any]:
    """Run tests in a child, with ``source`` in the place of ``file`` if one is given.

    Args:
        seconds: how long they may take together.
        each: how long each may take.
        watched: a folder; the answer says which of its lines each file of tests runs.
        marked: which tests of these run, as pytest's ``-m``.
    """
    with planted(Path(file), source) if file else contextlib.nullcontext():
        start = time.monotonic()
        result = Path(output).with_suffix(".json")
        result.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            _run_in_child(tests, Path(output), result, each, watched, marked)
        ended = _ended(child, start + seconds)
    answer = {
        "code": ended,
        "failed": "",
        "failures": [],
        "passed": 0,
        "seconds": {},
        "reached": {},
        "took": time.monotonic() - start,
    }
    if ended is not None and result.exists():
        return {**answer, **json.loads(result.read_text())}
    return {**answer, "failed": "the end of the time" if ended is None else f"the end of the process ({ended})"}


@contextlib.contextmanager
def planted(file: Path, source: str) -> Iterator[None]:
    """Another text in the place of a file, for the length of the block.

    The file stays as old as it was: what compares it with the start of the process must not notice a fault by its age.
    """
    original, times = file.read_bytes(), file.stat()
    try:
        _write(file, source.encode(), times)
        yield
    finally:
        _write(file, original, times)


def _write(file: Path, content: bytes, times: os.stat_result) -> None:
    _forget_compiled(file)
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _forget_compiled(file: Path) -> None:
    """Remove what Python has compiled of a file: it compares times and sizes, which may be the same."""
    for each in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        each.unlink()


def _run_in_child(tests: list[str], output: Path, result: Path, each: float, watched: str, marked: str) -> None:
    code: int | str = "crashed"
    try:
        os.setsid()
        with output.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (DATA, DATA))
        import pytest

        from .reach import Reach

        outcomes = Outcomes()
        reach = Reach(watched) if watched else None
        options = [*ALONE, "-m", marked, *([f"--timeout={each}"] if each else []), *([] if watched else ["-x"])]
        code = int(pytest.main([*options, *tests], plugins=[outcomes, *([reach] if reach else [])]))
        reached = reach.reached if reach else {}
        result.write_text(json.dumps({**vars(outcomes), "reached": reached}))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 70)


def _ended(child: int, deadline: float) -> int | None:
    """The exit code of a child (negative: the signal that ended it); ``None`` if it did not end in time."""
    pause = 0.01
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and whatever the tests have started
    if pid:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    serve(sys.argv[1:])
