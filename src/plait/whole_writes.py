"""Files and folders that appear whole or not at all, and are on the disk once they are there.

What is written lies under a hidden name beside its place until it is complete. Then its bytes are synced, it is
renamed, and the folder that names it is synced. Whenever the process or the machine stops, there is what was there
before, or all of what is new. To replace a file is one rename. To replace a folder takes two, and what is replaced is
kept until the second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .scratch import REPLACED, scratch_folder


class CannotBeginError(OSError):
    """Nothing can be made beside the place that is to be written to."""


def _always() -> None:
    """No check."""


@contextlib.contextmanager
def written_whole(target: Path, check: Callable[[], None] = _always, *, parents: bool = False) -> Iterator[Path]:
    """Yield a path for the body to make a file or folder at; when the body ends it becomes ``target``.

    Args:
        target: the place. A link is replaced by what is written.
        check: raises if ``target`` may not be written; it is asked before the body and once more before the renaming.
        parents: whether to make the folders above it.

    Raises:
        CannotBeginError: the folder of ``target`` is not there, or cannot be written to; the body has not run.
        OSError: the disk is full, or something else got in the way of the renaming; what was there is kept.
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
        _put(draft, target, scratch / REPLACED)
        _sync_folder(target.parent)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file; as ``written_whole`` for what is in memory already."""
    with written_whole(target) as draft:
        draft.write_bytes(content)


def remove_whole(path: Path) -> None:
    """Remove a file or folder in one step: at no time is a part of it left under its name."""
    with scratch_folder(path) as scratch:
        os.rename(path, scratch / "removed")


def _put(draft: Path, target: Path, replaced: Path) -> None:
    if not draft.is_dir() and not _is_folder(target):
        os.replace(draft, target)
        return
    try:
        if os.path.lexists(target):
            os.rename(target, replaced)
        os.rename(draft, target)
    except BaseException:  # an interruption between the two, too
        if os.path.lexists(replaced) and not os.path.lexists(target):
            os.rename(replaced, target)
        raise


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _sync(path: Path) -> None:
    """Bring a file, or all of a folder, from the system's memory to the disk."""
    if not path.is_dir():
        _sync_file(path)
        return
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            _sync_file(Path(folder, name))
        _sync_folder(Path(folder))


def _sync_file(path: Path) -> None:
    # Windows syncs only what is open for writing.
    file = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    """The names in a folder. Some disks and systems cannot, and then there is nothing to be done about it."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
