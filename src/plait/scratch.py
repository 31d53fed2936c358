"""Temporary folders beside a place, and what is left of those whose writer was killed.

A folder is made under a hidden name and locked for as long as its writer lives; the system drops the lock when a
process ends, however it ends. Whoever writes to the same place next removes the folders that nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no locks that end with their process: nothing is removed
    fcntl: Any = None

_SUFFIX = ".partial"
_LOCK = "writing.lock"
# What was there before, while something new is put in its place.
REPLACED = "replaced"


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A fresh folder on the same disk as ``target``, which is removed at the end with all that is in it.

    It stays when the block fails and left something under ``replaced`` in it: what was at ``target`` before.

    Raises:
        OSError: none can be made there.
    """
    remove_abandoned(target.parent, target.name)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_SUFFIX, dir=target.parent))
    lock = hold(scratch / _LOCK, create=True)
    if lock is None:  # a folder that nobody can be seen to hold is nobody's to remove
        (scratch / _LOCK).unlink(missing_ok=True)
    is_done = False
    try:
        yield scratch
        is_done = True
    finally:
        if is_done or not os.path.lexists(scratch / "replaced"):
            shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_abandoned(parent: Path, name: str | None = None) -> None:
    """Remove the folders for places in ``parent`` (for the one of that name) whose writer has ended.

    Those without a lock are left: they may be somebody's.
    """
    for folder in parent.glob(f".{'*' if name is None else _escaped(name)}.*{_SUFFIX}"):
        lock = None
        with contextlib.suppress(OSError):
            lock = hold(folder / _LOCK, create=False)
        if lock is not None:
            if not os.path.lexists(folder / REPLACED):  # what its writer could not put back
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def hold(path: Path, *, create: bool) -> int | None:
    """Lock a file until what is returned is closed, or the process ends.

    Returns:
        The open file; ``None`` if it is not there, or the disk knows no locks.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    if fcntl is None:
        return None
    try:
        file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return file
