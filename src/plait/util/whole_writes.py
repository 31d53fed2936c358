"""Atomic, durable writes of files and folders.

A file or folder is written under a hidden name in the same parent. Then its bytes are synced, it is renamed, and the
parent is synced. If the process or the machine stops at any point, the path has either the old contents or all of the
new ones, with one exception. Replacing a file takes one rename. Replacing a folder takes two, as no system call for
exchanging two folders exists on all systems. A process that is killed between them leaves the old folder under a
hidden name: the next writer to the path moves it back, and so does the next reader of a checkpoint or export there
(``scratch.recover``). On systems without locks (Windows, some network disks) it stays under the hidden name.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .scratch import REMOVED, REPLACED, scratch_folder


class CannotBeginError(OSError):
    """Nothing can be created in the parent of the target."""


def _always() -> None:
    """No check."""


@contextlib.contextmanager
def written_whole(target: Path, check: Callable[[], None] = _always, *, parents: bool = False) -> Iterator[Path]:
    """Yield a path for the body to create a file or folder at; when the body ends, rename it to ``target``.

    Args:
        target: the final path. A link is replaced.
        check: raises if ``target`` may not be written; called before the body and again before the rename.
        parents: whether to create the parent folders.

    Raises:
        CannotBeginError: the parent of ``target`` does not exist, or is not writable; the body has not run.
        OSError: the disk is full, or the rename failed; the old contents are kept.
    """
    check()
    with contextlib.ExitStack() as held:
        try:
            if parents:
                target.parent.mkdir(parents=True, exist_ok=True)
            scratch = held.enter_context(scratch_folder(target))
        except OSError as error:
            raise CannotBeginError(error.errno, error.strerror) from error
        draft = scratch / target.name
        yield draft
        check()
        _sync(draft)
        _put(draft, target, scratch / REPLACED / target.name)
        _sync_folder(target.parent)


def digest_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_whole(path: Path) -> None:
    """Remove a file or folder atomically: no partial folder is ever left under its name."""
    with scratch_folder(path) as scratch:
        os.rename(path, scratch / REMOVED)


def move_aside(path: Path, kind: str) -> Path:
    """Rename a file or folder to the first free name of ``NAME.kind-1``, ``NAME.kind-2``, …, and return that path."""
    aside = next(
        each for n in itertools.count(1) if not os.path.lexists(each := path.with_name(f"{path.name}.{kind}-{n}"))
    )
    os.rename(path, aside)
    return aside


def _put(draft: Path, target: Path, replaced: Path) -> None:
    if not draft.is_dir() and not _is_folder(target):
        os.replace(draft, target)
        return
    if os.path.lexists(target):
        replaced.parent.mkdir()
        os.rename(target, replaced)
    os.rename(draft, target)  # if it fails, or is interrupted, the scratch folder puts the old one back


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _sync(path: Path) -> None:
    """Sync a file, or all files of a folder, to disk."""
    if not path.is_dir():
        _sync_file(path)
        return
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            _sync_file(Path(folder, name))
        _sync_folder(Path(folder))


def _sync_file(path: Path) -> None:
    # Windows syncs only files that are open for writing.
    file = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    """Sync the names in a folder. Some disks and systems do not support this; errors are ignored."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
