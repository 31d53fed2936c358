"""Which lines the tests of each file run: only those tests can notice a fault there."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

EVERYTHING = "*"
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system")


class Reach:
    """A plugin of pytest that takes down, for each file of tests, the lines of a folder that run.

    What runs while the file is imported counts, and what runs in a thread. What runs in a process that a test starts
    cannot be seen, so such a file reaches ``EVERYTHING``.

    Args:
        folder: of the source, with a separator at its end.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.seen: dict[str, bool] = {}  # file of tests → whether it starts processes
        self.current: str | None = None
        self.coverage = coverage.Coverage(data_file=None, include=[f"{folder}*"], config_file=False)
        self.coverage.start()
        self.tracer = sys.gettrace()
        sys.addaudithook(self.audit)

    @property
    def reached(self) -> dict[str, list[str]]:
        """``file:line`` for each line, the file relative to the folder; by file of tests."""
        self.coverage.stop()
        data, found = self.coverage.get_data(), {}
        for tests, starts in self.seen.items():
            data.set_query_context(tests)
            lines = [(file, line) for file in data.measured_files() for line in data.lines(file) or ()]
            found[tests] = [f"{file.removeprefix(self.folder)}:{line}" for file, line in lines]
            found[tests] += [EVERYTHING] * starts
        return found

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        self.enter(collector.nodeid)
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.enter(item.nodeid)
        yield

    def enter(self, nodeid: str) -> None:
        tests = nodeid.partition("::")[0]
        if sys.gettrace() is not self.tracer:  # there are tests that trace, and leave no tracer behind
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.coverage.stop()
            self.coverage.start()
            self.tracer, self.current = sys.gettrace(), None
        if tests != self.current:
            self.current = tests
            self.seen.setdefault(tests, False)
            self.coverage.switch_context(tests)

    def audit(self, event: str, arguments: Any) -> None:
        if event in STARTS and self.current is not None:
            self.seen[self.current] = True


def reaching(reached: Mapping[str, Collection[str]], file: Path, name: Path, line: int) -> set[str] | None:
    """The files of tests that run the statement at a line, or a part of it; ``None`` where it is in no function.

    Args:
        file: without a fault.
        name: by which it stands in ``reached``.

    Not all tests that depend on a statement run it: a cache may spare them that. So a test that is left out might have
    noticed the fault; what is said to be noticed is noticed.
    """
    lines = _statement(ast.parse(file.read_text(encoding="utf-8")), line)
    if lines is None:
        return None
    wanted = {EVERYTHING, *(f"{name}:{number}" for number in lines)}
    return {tests for tests, run in reached.items() if not wanted.isdisjoint(run)}


def _statement(tree: ast.AST, line: int) -> range | None:
    """The lines of the innermost statement around a line, if that is in a function."""
    found, head = None, None  # the line of the function around
    for node in _around(tree, line):
        if isinstance(node, ast.stmt):
            inside = head is not None and _first(node) > head
            found = range(_first(node), (node.end_lineno or 0) + 1) if inside else None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            head = node.lineno
        elif isinstance(node, ast.ClassDef):
            head = None
    return found


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements around a line, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            last = max((each.end_lineno or 0) for each in ast.walk(node) if hasattr(each, "end_lineno"))
            if _first(node) <= line <= last:
                yield node
                yield from _around(node, line)


def _first(node: Any) -> int:
    lines = [each.lineno for each in ast.walk(node) if hasattr(each, "lineno")]
    return min(lines)
