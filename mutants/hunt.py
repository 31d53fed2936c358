"""One hunt: faults are planted in a copy of the tree, one at a time, and the tests of the area are run.

The nearest tests run first, and the first failure ends the run, so a fault that is noticed costs seconds; one that is
not costs all tests of the area. A fault counts as noticed when a test fails, when the process crashes, or when the
tests take several times as long as without it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import judged
from .areas import Area, stages
from .faults import Fault, sample

Key = tuple[str, str, str]
# When to give up: on all tests, after so many times of what they take without a fault and so many seconds more; on one
# test, after so many seconds.
TIMES, SECONDS, EACH = 3.0, 60.0, 60.0
PASSED, NOTHING_TO_RUN = 0, 5  # of pytest


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of the faults.

    Attributes:
        killed: each with the test that noticed it.
        survivors: those that no test noticed.
        judged: those that need not be noticed, each with the reason. They were not planted.
    """

    killed: list[tuple[Fault, str]]
    survivors: list[Fault]
    judged: list[tuple[Fault, str]]

    @property
    def rate(self) -> float:
        """The share of noticed faults among those that were planted."""
        return len(self.killed) / max(1, len(self.killed) + len(self.survivors))


def hunt(
    area: Area, root: Path, count: int, seed: int, *, known: Mapping[Key, str] | None = None, only: str | None = None
) -> Result:
    """Plant ``count`` faults of an area, and print what becomes of them."""
    known = judged.read() if known is None else known
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "tree"
        _copy(root, copy)
        files = [path for path in sorted((copy / area.source).rglob("*.py")) if only is None or path.match(only)]
        faults = sample(copy, files, count, seed)
        result = Result([], [], [])
        with _process(copy, area, Path(folder)) as tests:
            for number, fault in enumerate(faults, 1):
                reason = known.get((fault.file, fault.before, fault.after))
                if reason is None:
                    noticed, took = tests.noticed(fault)
                    (result.survivors.append(fault) if noticed is None else result.killed.append((fault, noticed)))
                    told = f"{noticed or 'SURVIVED'} ({took:.0f} s)"
                else:
                    result.judged.append((fault, reason))
                    told = f"judged: {reason}"
                print(f"{number}/{len(faults)} {fault.file}:{fault.number} {told}")
                if reason is None and noticed is None:
                    print(f"{fault.diff}\n\n{judged.entry(fault)}\n")
    _report(result, area, seed)
    return result


def _report(result: Result, area: Area, seed: int) -> None:
    planted = len(result.killed) + len(result.survivors)
    for title, faults in (("survived", result.survivors), ("judged", [fault for fault, _ in result.judged])):
        print(f"\n{len(faults)} {title}", *(f"  {fault.file}:{fault.number}" for fault in faults), sep="\n")
    print(f"\n{area.source}, seed {seed}: {len(result.killed)} of {planted} faults were noticed ({result.rate:.0%})")


def _copy(root: Path, target: Path) -> None:
    """What git knows of the tree, and what it does not ignore; all of it where there is no repository."""
    listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=False)
    if names.returncode:
        shutil.copytree(root, target)
        return
    for name in filter(None, names.stdout.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


class _Tests:
    """The tests of an area, run by a process that stands by."""

    def __init__(self, area: Area, root: Path, folder: Path, process: subprocess.Popen[str]) -> None:
        self.area, self.root, self.folder, self.process = area, root, folder, process
        self.output = folder / "output.txt"
        self.each = 0.0
        self.seconds = 3600.0
        self.order: dict[str, float] = {}
        self.noticers: collections.Counter[str] = collections.Counter()

    def ask(self, tests: list[str], **fault: str) -> dict[str, Any]:
        request = {"tests": tests, "output": str(self.output), "seconds": self.seconds, "each": self.each, **fault}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs the tests has ended:\n{self._printed()}")
        return json.loads(answer)

    def settle(self) -> None:
        """Without a fault the tests pass; how long that takes says when to give up on one."""
        paths = [str(self.root / test) for test in self.area.tests]
        answer = self.ask(paths)
        if answer["failed"] or not answer["passed"]:
            raise SystemExit(f"the tests do not pass without a fault: {answer['failed']}\n{self._printed()}")
        print(f"{answer['passed']} tests pass without a fault ({answer['took']:.0f} s)")
        self.order = answer["seconds"]
        self.each = EACH
        self.seconds = TIMES * answer["took"] + SECONDS

    def noticed(self, fault: Fault) -> tuple[str | None, float]:
        """The test that notices a fault, and how long that took."""
        took = 0.0
        for stage in stages(self.area, self.root, self.root / fault.file):
            answer = self.ask(sorted(stage, key=self.rank), file=str(self.root / fault.file), source=fault.source)
            took += answer["took"]
            if answer["failed"]:
                self.noticers[answer["failed"].partition("::")[0]] += 1
                return answer["failed"], took
            if answer["code"] not in (PASSED, NOTHING_TO_RUN):
                raise RuntimeError(f"pytest could not run the tests ({answer['code']}):\n{self._printed()}")
        return None, took

    def rank(self, path: str) -> tuple[int, float]:
        """Files that have noticed many faults come first, and then those that take little time."""
        name = Path(path).relative_to(self.root).as_posix()
        return -self.noticers[name], self.order.get(name, 0.0)

    def _printed(self) -> str:
        return self.output.read_text(errors="replace")[-5000:] if self.output.exists() else ""


@contextlib.contextmanager
def _process(root: Path, area: Area, folder: Path) -> Iterator[_Tests]:
    package = Path(area.package).parent
    paths = [str(root / package), str(root), str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    command = [sys.executable, "-P", "-m", "mutants.process", *area.preload]
    with subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        tests = _Tests(area, root, folder, process)
        try:
            tests.settle()
            yield tests
        finally:
            process.stdin.close()
