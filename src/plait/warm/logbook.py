"""What processes did with a folder of programs: one file of JSON lines for each process.

A line is appended in one piece as soon as its event is over. So a process that is killed leaves the lines of all that
it did before, and any number of processes may share a folder. No error is raised for a report: what cannot be written
is left out. (rule W16)
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..ground import schemas

FOLDER = "log"
_SUFFIX = ".jsonl"
_KEPT = 100  # files of processes; older ones are removed
_LINE = {
    "what": str,
    "function?": str,
    "why?": [str],
    "seconds?": float,
    "file?": str,
    "program?": str,
    "started?": str,
    "pid?": int,
    "counts?": {str: int},
}


class Logbook:
    """The lines of this process.

    Args:
        folder: the folder of the programs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def add(self, what: str, **parts: Any) -> None:
        """Append a line about an event: ``loaded``, ``missed``, ``stored``, ``not stored``, or ``jax``."""
        file = self._file()
        with contextlib.suppress(OSError):
            lines = [json.dumps({"what": what, **parts})]
            if not file.exists():
                self.folder.mkdir(mode=0o700, exist_ok=True)
                first = {"what": "process", "program": _program(), "started": _STARTED, "pid": os.getpid()}
                lines.insert(0, json.dumps(first))
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            with os.fdopen(descriptor, "ab", buffering=0) as opened:
                opened.write(("\n".join(lines) + "\n").encode())

    def last_used(self) -> list[str]:
        """The files of the programs that the last process of this name loaded or stored, in that order."""
        for file in reversed(_files(self.folder)):
            first, *lines = _lines(file) or [{}]
            if first.get("program") == _program() and file != self._file():
                return [*dict.fromkeys(line["file"] for line in lines if "file" in line)]
        return []

    def _file(self) -> Path:
        return self.folder / f"{_STARTED}-{os.getpid()}{_SUFFIX}"

    def trim(self) -> None:
        """Remove the files of the oldest processes."""
        for file in _files(self.folder)[:-_KEPT]:
            with contextlib.suppress(OSError):
                file.unlink()


def processes(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The lines of each process that used a folder of programs, oldest first; a damaged line is left out."""
    for file in _files(folder / FOLDER):
        lines = _lines(file)
        if lines:
            yield lines


def _lines(file: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for line in file.read_bytes().splitlines():
            with contextlib.suppress(schemas.SchemaError):
                lines.append(schemas.parse_json(line, _LINE))
    return lines


def _program() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv else ""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


_STARTED = time.strftime("%Y-%m-%d %H.%M.%S")
