"""Temporary folders next to a path, and what happens to those whose writer was killed.

A folder is created under a hidden name and locked while its writer lives; the system releases the lock when the process
ends, even if it is killed. The next writer to the same path removes unlocked folders. If one of them has what its
writer was replacing, that is moved back first; readers that find nothing at the path do this too.

    .NAME.abc12345.partial/
        writing.lock     locked by the writer; writing.unlocked on a disk without locks
        NAME             what is being written
        replaced/NAME    what was there before, until the new one is in its place
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .files import check_is_file

try:
    import fcntl
except ImportError:  # no locks that end with their process: nothing is removed
    fcntl: Any = None

_SUFFIX = ".partial"
_LOCK, _UNLOCKED = "writing.lock", "writing.unlocked"
REPLACED, REMOVED = "replaced", "removed"


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A new folder on the same disk as ``target``, removed at the end with its contents.

    If the block ends between moving the old ``target`` into it and moving the new one out, the old one is moved back;
    if that fails too, the folder stays.

    Raises:
        OSError: it cannot be created.
    """
    remove_abandoned(target.parent, target.name)
    scratch, lock = _locked_folder(target)
    if lock is None:  # without a lock, others cannot tell that the folder is in use
        (scratch / _UNLOCKED).touch()
        (scratch / _LOCK).unlink(missing_ok=True)
    try:
        yield scratch
    finally:
        try:
            if _put_back(scratch):
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            if lock is not None:
                lock.release()


def _locked_folder(target: Path) -> tuple[Path, Lock | None]:
    """A new folder and its lock.

    Another writer that removes abandoned folders may find it before it is locked, and remove it, also between the
    opening of the lock file and the lock: then another is made.
    """
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_SUFFIX, dir=target.parent))
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = hold(scratch / _LOCK, create=True)
            if lock is None or (scratch / _LOCK).exists():
                return scratch, lock
            lock.release()


def remove_abandoned(parent: Path, name: str | None = None) -> None:
    """Remove the temporary folders of paths in ``parent`` (or of that name only) whose writer has ended.

    What such a writer was replacing is moved back to its path.
    """
    for scratch in _iter_abandoned(parent, name):
        if _put_back(scratch):
            shutil.rmtree(scratch, ignore_errors=True)


def recover(path: Path) -> None:
    """If nothing is at ``path``, because its writer was killed while replacing it, move the old contents back."""
    if not os.path.lexists(path):
        recover_in(path.parent, path.name)


def recover_in(parent: Path, name: str | None = None) -> None:
    """``recover`` all paths in a folder (or those of that name only)."""
    for scratch in _iter_abandoned(parent, name):
        _put_back(scratch)


def _iter_abandoned(parent: Path, name: str | None) -> Iterator[Path]:
    """The temporary folders whose writer has ended; each is locked while the caller uses it.

    One may have no lock file: a writer that was interrupted removed it, while a thread of Orbax went on to write. Those
    whose writer has no locks are kept, and folders with anything that no writer of that path puts there.
    """
    for scratch in parent.glob(f".{'*' if name is None else glob.escape(name)}.*{_SUFFIX}"):
        lock = None
        written = {scratch.name[1:].rsplit(".", 2)[0], REPLACED, REMOVED}
        with contextlib.suppress(OSError):
            if (scratch / _LOCK).exists() or written.issuperset(os.listdir(scratch)):
                lock = hold(scratch / _LOCK, create=True)
        if lock is not None:
            try:
                yield scratch
            finally:
                lock.release()


def _put_back(scratch: Path) -> bool:
    """Move what was being replaced back to its path. Returns whether nothing in the folder is needed.

    As long as the draft is in the folder, it was not moved to its path. If something else is there by now, both stay.
    """
    replaced = scratch / REPLACED
    try:
        for old in replaced.iterdir() if replaced.is_dir() else ():
            if os.path.lexists(scratch / old.name):
                if os.path.lexists(scratch.parent / old.name):
                    return False
                os.rename(old, scratch.parent / old.name)
    except OSError:
        return False
    return True


class Lock:
    """A file that this process has locked, until ``release`` or the end of the process.

    Args:
        file: the open file.
    """

    def __init__(self, file: int) -> None:
        self.file: int | None = file
        _HELD.add(self)

    def write(self, text: str) -> None:
        """Replace the contents of the file."""
        if self.file is not None:
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, text.encode(), 0)

    def is_at(self, path: Path) -> bool:
        """Whether the file is at this path, and locked by this process."""
        with contextlib.suppress(OSError):
            return self.file is not None and os.path.samestat(os.stat(path), os.fstat(self.file))
        return False

    def release(self) -> None:
        """Close the file; does nothing if it is closed."""
        file, self.file = self.file, None
        _HELD.discard(self)
        if file is not None:
            os.close(file)


_HELD: set[Lock] = set()


def _release_all() -> None:
    for lock in tuple(_HELD):
        lock.release()


# A forked child, such as a worker that loads data, inherits the open files, and with them the locks: if it outlived
# its parent, the folder would stay locked. Closing them in the child leaves the locks to the parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


def hold(path: Path, *, create: bool) -> Lock | None:
    """Lock a file until the lock is released, or the process ends.

    Returns:
        The lock; ``None`` if the file does not exist, or the disk does not support locks.

    Raises:
        BlockingIOError: another process, or this one, holds the lock.
        FileNotFoundError: its folder does not exist, and the file was to be created.
    """
    if fcntl is None:
        return None
    try:
        # A link would have the lock written into the file that it leads to.
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        if create:
            raise
        return None
    try:
        check_is_file(path, os.fstat(file).st_mode)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError) or error.errno == errno.EINVAL:
            raise
        return None
    return Lock(file)


def is_held_here(path: Path) -> bool:
    """Whether this process holds the lock of a file. Process ids do not tell: those of two containers may be equal."""
    return any(lock.is_at(path) for lock in tuple(_HELD))
