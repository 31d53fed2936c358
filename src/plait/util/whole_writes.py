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
import errno
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import PlaitError
from .scratch import REMOVED, REPLACED, scratch_folder

_THREADS = 8  # that sync files
_FAULTS = tuple(map(os.strerror, (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EROFS)))


def _always() -> None:
    """No check."""


@contextlib.contextmanager
def written_whole(
    target: Path, what: str, kind: type[PlaitError], check: Callable[[], None] = _always, *, parents: bool = False
) -> Iterator[Path]:
    """Yield a path for the body to create a file or folder at; when the body ends, rename it to ``target``.

    Args:
        target: the final path. A link is replaced.
        what: what is written, for errors.
        kind: the error to raise.
        check: raises if ``target`` may not be written; called before the body and again before the rename.
        parents: whether to create the parent folders.

    Raises:
        PlaitError: the parent of ``target`` does not exist, or is not writable, and the body has not run; or the disk
            is full, by whatever exception a library raises for it, or something else fails there; or a file would
            replace a folder, or a folder a file. The old contents are kept.
    """
    check()
    with contextlib.ExitStack() as held:
        try:
            if parents:
                target.parent.mkdir(parents=True, exist_ok=True)
            scratch = held.enter_context(scratch_folder(target))
        except OSError as error:
            raise kind(
                f"{what} cannot be written into this folder",
                at=str(target.parent),
                found=error.strerror or str(error),
                expected="an existing folder with write permission",
                do="create the folder, or choose a path in a writable one",
            ) from error
        draft = scratch / target.name
        try:
            yield draft
            check()
            _check_same_kind(draft, target, what, kind)
            _sync(draft)
            _put(draft, target, scratch / REPLACED / target.name)
            _sync_folder(target.parent)
        except Exception as error:
            is_fault = isinstance(error, OSError) or any(fault in str(error) for fault in _FAULTS)
            if isinstance(error, PlaitError) or not is_fault:
                raise
            raise kind(
                f"{what} cannot be written to this disk",
                at=str(target),
                found=str(error)[:300],
                expected="a disk, and a quota, with enough free space",
                do="free some space, or choose a path on another disk; what was there is unchanged",
            ) from error


def check_own_file(target: Path, mark: bytes, what: str, kind: type[PlaitError]) -> None:
    """Raise if there is anything at a path but an empty file, or one with this mark near its beginning."""
    if not os.path.lexists(target):
        return
    if target.is_file():
        with open(target, "rb") as file:
            begin = file.read(2_000)
        if not begin or mark in begin:
            return
    raise kind(
        f"{what} would replace another file",
        at=str(target),
        found="a folder" if target.is_dir() else "a file of another kind",
        expected="a path that does not exist, or an earlier file of this kind",
        do="choose another path",
    )


def digest_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def put_before(draft: Path, target: Path, other: Path, other_target: Path) -> None:
    """At the end of the body: replace a file that belongs to the one that is written.

    Whoever is killed from here on leaves neither with an older one: there is no ``target`` until both are in place.
    """
    _sync(draft)
    target.unlink(missing_ok=True)
    os.replace(other, other_target)


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


def _check_same_kind(draft: Path, target: Path, what: str, kind: type[PlaitError]) -> None:
    if target.exists() and not target.is_symlink() and target.is_dir() != draft.is_dir():
        words = {True: "a folder", False: "a file"}
        raise kind(
            f"{what} would replace something of another kind",
            at=str(target),
            found=words[target.is_dir()],
            expected=f"{words[draft.is_dir()]}, or nothing",
            do="choose another path, or delete it yourself",
        )


def _put(draft: Path, target: Path, replaced: Path) -> None:
    if not draft.is_dir():
        os.replace(draft, target)
        return
    if os.path.lexists(target):
        replaced.parent.mkdir()
        os.rename(target, replaced)
    os.rename(draft, target)  # if it fails, or is interrupted, the scratch folder puts the old one back


def _sync(path: Path) -> None:
    """Sync a file, or all files of a folder and then the folders, to disk."""
    if not path.is_dir():
        _sync_file(path)
        return
    folders = {Path(folder): files for folder, _, files in os.walk(path)}
    with ThreadPoolExecutor(_THREADS) as pool:  # what is synced at the same time takes a disk one commit
        for _ in pool.map(_sync_file, [folder / name for folder, files in folders.items() for name in files]):
            pass
        for _ in pool.map(_sync_folder, folders):
            pass


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
