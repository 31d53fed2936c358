"""Paths that the user gives, and files that anybody may have made.

What is at a path may be a pipe, which waits for ever, or a device without an end, or a link to one. So every reader
opens its files here, or has them checked here before a library opens them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import ArgumentTypeError, CheckpointError, PlaitError
from .words import describe_type

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # and no drive, which has one letter; Path makes gs:/ of gs://


def given_path(path: str | os.PathLike[str], error: type[PlaitError] = CheckpointError) -> Path:
    """The path that a user gives; ``~`` is the home folder.

    Args:
        error: the error to raise.

    Raises:
        ArgumentTypeError: it is not a path.
        PlaitError: it is the address of a bucket, which would become a folder ``gs:`` on this machine, or the system
            cannot look it up, for example because a name is too long.
    """
    try:
        text = os.path.expanduser(os.fsdecode(path))
    except TypeError as reason:
        raise ArgumentTypeError(
            "this is not a path",
            found=describe_type(path),
            expected="a string, or a pathlib.Path",
            do='pass the path, such as "run/model"',
        ) from reason
    if is_address(text):
        raise error(
            "an address is not a path",
            at=text,
            found="the address of a bucket or a server",
            expected="the path of a file or folder of a file system",
            do="mount the bucket, with something that renames folders in one step, and give the path of the mount",
        )
    try:
        os.lstat(text)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as reason:
        raise error(
            "the system cannot look up this path",
            at=f"{text:.200}",
            found=str(getattr(reason, "strerror", None) or reason),
            expected="a path whose folders can be read, with names that the disk allows",
            do="choose another path, or check its permissions",
        ) from reason
    return Path(text)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of a bucket or a server."""
    return _ADDRESS.match(os.fsdecode(path)) is not None


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes.

    Raises:
        OSError: it cannot be read, or it is a folder, a pipe or a device, or a link to one.
    """
    check_is_file(path, os.stat(path).st_mode)
    return open(path, "rb")


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The bytes of a file.

    Args:
        most: the number of bytes that no such file exceeds; ``None`` means the machine's memory.

    Raises:
        OSError: as in ``open_file``, or the file has more bytes.
    """
    most = memory() if most is None else most
    with open_file(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
        return file.read()


def memory() -> int | None:
    """The machine's memory in bytes; ``None`` if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_files(folder: Path) -> None:
    """Raise unless all that a library may open in a folder are files. Links to folders are not followed.

    Raises:
        OSError: something is a pipe, a device, or a link to one or to a folder.
    """
    folders = [os.fspath(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    check_is_file(entry.path, entry.stat().st_mode)


def check_is_file(path: str | os.PathLike[str], mode: int) -> None:
    """Raise unless the mode of what is at a path is that of a file.

    Raises:
        OSError: it is a folder, a pipe or a device.
    """
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or socket" if not stat.S_ISCHR(mode) else "a device"
        raise OSError(errno.EINVAL, f"{kind} in place of a file", os.fspath(path))
