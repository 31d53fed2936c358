"""Which functions the tests of each file run: only those tests can notice a fault in one of them."""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

EVERYTHING = "*"
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system")


class Reach:
    """A plugin of pytest that takes down, for each file of tests, the functions of a folder that run.

    What runs while the file is imported counts, and what runs in a thread. What runs in a process that a test starts
    cannot be seen, so such a file reaches ``EVERYTHING``.

    Args:
        folder: of the source, with a separator at its end.

    Attributes:
        reached: ``file:first line`` of each function, the file relative to the folder; by file of tests.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.reached: dict[str, set[str]] = {}
        self.current: set[str] | None = None
        self.names: dict[int, tuple[CodeType, str]] = {}  # by identity: to hash a code object takes long
        sys.addaudithook(self.audit)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        with self.of(collector.nodeid):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        with self.of(item.nodeid):
            yield

    @contextlib.contextmanager
    def of(self, nodeid: str) -> Iterator[None]:
        self.current = self.reached.setdefault(nodeid.partition("::")[0], set())
        threading.settrace(self.trace)
        sys.settrace(self.trace)  # for each test again: there are tests that set another function, and then none
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        known = self.names.get(id(code))
        if known is None:
            inside = code.co_filename.startswith(self.folder)
            name = f"{code.co_filename.removeprefix(self.folder)}:{code.co_firstlineno}"
            known = self.names[id(code)] = code, name if inside else ""
        if known[1] and self.current is not None:
            self.current.add(known[1])

    def audit(self, event: str, arguments: Any) -> None:
        if event in STARTS and self.current is not None:
            self.current.add(EVERYTHING)


def reaching(reached: Mapping[str, Collection[str]], file: Path, name: Path, line: int) -> set[str] | None:
    """The files of tests that run the function around a line, or one within it; ``None`` where it is in no function.

    Args:
        file: without a fault.
        name: by which it stands in ``reached``.

    Not all tests that depend on a function run it: a cache may spare them that. So a test that is left out might have
    noticed the fault; what is said to be noticed is noticed.
    """
    lines = _function(ast.parse(file.read_text(encoding="utf-8")), line)
    if lines is None:
        return None
    wanted = {EVERYTHING, *(f"{name}:{number}" for number in lines)}
    return {tests for tests, functions in reached.items() if not wanted.isdisjoint(functions)}


def _function(tree: ast.AST, line: int) -> range | None:
    """The lines of the innermost function in whose body a line stands; decorators and defaults are not its own."""
    found = None
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if max(node.lineno + 1, node.body[0].lineno) <= line <= (node.end_lineno or 0):
                found = range(first, (node.end_lineno or 0) + 1)
    return found
