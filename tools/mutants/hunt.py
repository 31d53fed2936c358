"""One hunt: faults are planted in a copy of the tree, one at a time, and the tests of the area are run.

The tests run once without a fault, which shows what each file of them runs of the source. With a fault, only the
files run that reach it: the nearest first, and the first failure ends the run. Where all fast tests pass, slow ones
follow, from files that run any of the changed file. A fault counts as noticed when a test fails, when the process
crashes, or when the tests take several times as long as without it.
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
from .kept import Kept
from .process import FAST, SLOW
from .reach import EVERYTHING, reaching

Key = tuple[str, str, str]
# When to give up: on all tests, after so many times of what they take without a fault and so many seconds more; on one
# test, after so many seconds.
TIMES, SECONDS, EACH = 3.0, 60.0, 180.0
PASSED, NO_SUCH_TEST, NOTHING_TO_RUN = 0, 4, 5  # of pytest


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
        files = [path for path in sorted((copy / area.source).glob(area.pattern)) if only is None or path.match(only)]
        faults = sample(copy, files, count, seed)
        result = Result([], [], [])
        kept = Kept(root / "build" / "mutants" / f"{Path(area.source).name}.json", copy)
        with _process(copy, area, Path(folder), kept) as tests:
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

    def __init__(self, area: Area, root: Path, folder: Path, kept: Kept, process: subprocess.Popen[str]) -> None:
        self.area, self.root, self.folder, self.kept, self.process = area, root, folder, kept, process
        self.output = folder / "output.txt"
        self.each = 0.0
        self.seconds = 3600.0
        self.order: dict[str, float] = {}
        self.reached: dict[str, list[str]] = {}
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
        """Without a fault the tests pass, in a file that was written again as for one; how long that takes says when to
        give up."""
        answer = self.kept.settled or self._run_all()
        print(f"{answer['passed']} tests pass without a fault ({answer['took']:.0f} s)")
        self.order, self.reached = answer["seconds"], answer["reached"]
        self.each = EACH
        self.seconds = TIMES * answer["took"] + SECONDS

    def _run_all(self) -> dict[str, Any]:
        watched = os.path.join(self.root / self.area.source, "")
        file = next((self.root / self.area.source).glob(self.area.pattern))
        same = {"file": str(file), "source": file.read_text(encoding="utf-8")}
        answer = self.ask([str(self.root / test) for test in self.area.tests], watched=watched, **same)
        if failures := answer["failures"]:  # who watches holds values for longer, and there are tests of that
            unwatched = self.ask(failures)
            answer = {**answer, "failed": unwatched["failed"], "passed": answer["passed"] + unwatched["passed"]}
            answer["reached"] |= {failure.partition("::")[0]: [EVERYTHING] for failure in failures}
        if answer["failed"] or not answer["passed"]:
            raise SystemExit(f"the tests do not pass without a fault: {answer['failed']}\n{self._printed()}")
        if not any(answer["reached"].values()):
            raise SystemExit(f"the tests run nothing of the copy in {watched}: they import another one")
        self.kept.settle(answer)
        return answer

    def noticed(self, fault: Fault) -> tuple[str | None, float]:
        """The test that notices a fault, and how long that took."""
        before = self.kept.noticer(fault)
        if self.kept.is_known(fault):
            return before, 0.0
        took, noticed = 0.0, None
        for tests, marked in self._tries(fault, before):
            answer = self.ask(tests, file=str(self.root / fault.file), source=fault.source, marked=marked)
            took += answer["took"]
            if noticed := answer["failed"]:
                self._pass_without_it([noticed] if "::" in noticed else tests, marked)
                self.noticers[noticed.partition("::")[0]] += 1
                break
            if answer["code"] not in (PASSED, NOTHING_TO_RUN, *([NO_SUCH_TEST] if tests == [before] else [])):
                raise RuntimeError(f"pytest could not run the tests ({answer['code']}):\n{self._printed()}")
        self.kept.find(fault, noticed or None)
        return noticed or None, took

    def _pass_without_it(self, tests: list[str], marked: str) -> None:
        """Raise if slow tests, which ``settle`` does not run, fail without the fault too."""
        if marked == SLOW and (failed := self.ask(tests, marked=SLOW)["failed"]):
            raise SystemExit(f"the tests do not pass without a fault: {failed}\n{self._printed()}")

    def _tries(self, fault: Fault, before: str | None) -> Iterator[tuple[list[str], str]]:
        """The test that noticed it before, then the stages, without the files that do not reach the fault.

        Each with the mark of the tests that run; the slow ones come last.
        """
        if before and "::" in before:
            yield [before], FAST
            yield [before], SLOW
        file = self.root / fault.file
        name = file.relative_to(self.root / self.area.source)
        reaching_files = reaching(self.reached, file, name, fault.number)
        slow = []
        for stage in stages(self.area, self.root, file):
            tests = [path for path in stage if reaching_files is None or self._name(path) in reaching_files]
            if tests:
                yield sorted(tests, key=self.rank), FAST
            slow += [path for path in stage if self._may_notice_slowly(path, f"{name}:")]
        if slow:
            yield slow, SLOW

    def _may_notice_slowly(self, path: str, line: str) -> bool:
        """Whether a file has slow tests, and nothing speaks against their running a file of the source."""
        reached = self.reached.get(self._name(path), [line])
        return "slow" in Path(path).read_text(encoding="utf-8") and any(
            place == EVERYTHING or place.startswith(line) for place in reached
        )

    def rank(self, path: str) -> tuple[int, float]:
        """Files that have noticed many faults come first, and then those that take little time."""
        return -self.noticers[self._name(path)], self.order.get(self._name(path), 0.0)

    def _name(self, path: str) -> str:
        return Path(path).relative_to(self.root).as_posix()

    def _printed(self) -> str:
        return self.output.read_text(errors="replace")[-5000:] if self.output.exists() else ""


@contextlib.contextmanager
def _process(root: Path, area: Area, folder: Path, kept: Kept) -> Iterator[_Tests]:
    package = Path(area.package).parent
    paths = [str(root / package), str(root), str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    command = [sys.executable, "-P", "-m", "tools.mutants.process", *area.preload]
    with subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        tests = _Tests(area, root, folder, kept, process)
        try:
            tests.settle()
            yield tests
        finally:
            process.stdin.close()
