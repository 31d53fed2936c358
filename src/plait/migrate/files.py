"""Rewrites files and folders: shows a diff, or writes it; lists what you should review."""

from __future__ import annotations

import dataclasses
import difflib
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from ..ground.dependencies import require
from ..ground.whole_writes import written_whole

_SUFFIXES = (".py", ".pyi")
_NOTEBOOK = ".ipynb"
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


@dataclasses.dataclass
class Outcome:
    """The outcome for some files.

    Args:
        changed: files that are, or would be, changed.
        seen: how many files were read.
        findings: what to review: places, by message.
        failed: files that could not be rewritten, with the reason.
    """

    changed: list[Path] = dataclasses.field(default_factory=list)
    seen: int = 0
    findings: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)


def migrate(paths: Sequence[Path], *, write: bool, out: TextIO | None = None) -> int:
    """Rewrite the imports of files and of all Python files in folders.

    Args:
        paths: files and folders.
        write: whether to write the files; otherwise the changes are shown.
        out: where to print the diff and the lists; ``None`` means standard output.

    Returns:
        The exit status: 0, or 2 if a file could not be handled.

    Raises:
        MissingDependencyError: LibCST is not installed.
    """
    require("libcst", extra="migrate", purpose="to rewrite programs")
    stream: TextIO = sys.stdout if out is None else out
    outcome = Outcome()
    for file in _files(paths, outcome):
        _handle(file, outcome, write=write, out=stream)
    _print_outcome(outcome, write=write, out=stream)
    return 2 if outcome.failed else 0


def check(paths: Sequence[Path], *, out: TextIO | None = None) -> int:
    """List, by file and line, the uses that plait lacks or implements differently; no file changes.

    Args:
        paths: files and folders.
        out: where to print the list; ``None`` means standard output.

    Returns:
        The exit status: 0, or 2 if a file could not be handled.

    Raises:
        MissingDependencyError: LibCST is not installed.
    """
    require("libcst", extra="migrate", purpose="to rewrite programs")
    stream: TextIO = sys.stdout if out is None else out
    outcome = Outcome()
    for file in _files(paths, outcome):
        _handle(file, outcome, write=False, out=io.StringIO())
    _print_findings(outcome, stream)
    uses = f"{len(outcome.changed)} of {outcome.seen} files import flax.nnx"
    print(f"\n{uses}; {len(outcome.findings)} things to review." if outcome.findings else f"\n{uses}.", file=stream)
    return 2 if outcome.failed else 0


def _files(paths: Sequence[Path], outcome: Outcome) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        elif path.exists():
            yield path
        else:
            outcome.failed.append(f"{path}: there is nothing at this path")


def _below(folder: Path) -> Iterator[Path]:
    """Python files and notebooks, except in environments, caches and hidden folders."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _PASSED_OVER and not Path(place, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            if name.endswith((*_SUFFIXES, _NOTEBOOK)):
                yield Path(place, name)


def _handle(file: Path, outcome: Outcome, *, write: bool, out: TextIO) -> None:
    from .rewrite import UnreadableError, rewrite

    outcome.seen += 1
    try:
        source = file.read_bytes()
        if b"nnx" not in source:
            return
        if file.suffix == _NOTEBOOK:
            note = "notebooks are not supported; save it as a program, or change its import to `import plait as nnx`"
            outcome.findings.setdefault(note, []).append(str(file))
            return
        found = rewrite(source)
        for finding in found.findings:
            outcome.findings.setdefault(finding.text, []).append(f"{file}:{finding.line}")
        if found.source != source:
            outcome.changed.append(file)
            if write:
                _replace(file, found.source)
            else:
                _print_diff(file, source, found.source, out)
    except UnreadableError as error:
        place = f"{file}:{error.line}" if error.line is not None else str(file)
        outcome.failed.append(f"{place}: {error}")
    except OSError as error:
        outcome.failed.append(f"{file}: {error.strerror or error}")


def _replace(file: Path, source: bytes) -> None:
    """Write a file atomically, keeping its permissions; a link stays a link."""
    target = file.resolve()
    with written_whole(target) as draft:
        draft.write_bytes(source)
        shutil.copymode(target, draft)


def _print_diff(file: Path, before: bytes, after: bytes, out: TextIO) -> None:
    """A unified diff. Bytes that are not UTF-8 are shown as escapes."""
    old, new = (text.decode("utf-8", "backslashreplace").replace("\r\n", "\n").splitlines() for text in (before, after))
    for line in difflib.unified_diff(old, new, f"a/{file}", f"b/{file}", lineterm=""):
        print(line, file=out)


def _print_outcome(outcome: Outcome, *, write: bool, out: TextIO) -> None:
    _print_findings(outcome, out)
    count = f"{len(outcome.changed)} of {outcome.seen} files"
    verb = "were changed" if write else "would change; add --write to change them"
    print(f"\n{count} {verb}." if write else f"\n{count} {verb}", file=out)


def _print_findings(outcome: Outcome, out: TextIO) -> None:
    if outcome.findings:
        print("\nTo review:", file=out)
        for text, places in sorted(outcome.findings.items()):
            print(f"  {text}", file=out)
            for place in places:
                print(f"    {place}", file=out)
    if outcome.failed:
        print("\nSkipped:", file=out)
        for text in outcome.failed:
            print(f"  {text}", file=out)
