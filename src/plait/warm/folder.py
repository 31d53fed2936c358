"""The folder of stored programs: one file each, written atomically, with a checksum of its content.

A file has three parts: a line that identifies the format, with the SHA-256 checksum of the rest; a line of JSON, the
header; and the program. It is written under a temporary name and then renamed, so that any number of processes may read
and write one folder: a reader finds a complete file or none, and two processes that write the same program write the
same content.

A program is code for the machine. Whoever can write to the folder can run code in the processes that read it, so the
folder and each file must belong to the user (or to root), and nobody else may be able to write to them. The checksum
detects accidental changes, not malicious ones. (rules W7, W8)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ProgramCacheError, ProgramCacheWarning
from ..ground import schemas
from ..ground.notices import warn
from ..ground.whole_writes import written_whole

DEFAULT_LIMIT = 10 * 2**30
SUFFIX = ".program"
REFUSED = ".refused"  # in place of a program that cannot be stored: why, and what its trace depended on
OF_JAX = "jax"  # the subfolder that JAX's own cache uses while ``plait.cache`` is in force
_MAGIC = b"plait program 1 "
_RECORDED = {
    "key": str,
    "variant": str,
    "function": str,
    "parts": {str: str},
    "reads": [(str, str, Any)],
    "packages": {str: Any},
    "settings": [[Any]],
    "sources": [(Any, [Any], Any)],
}
_REFUSED = {**_RECORDED, "reasons": [str]}
_HEADER = {
    **_RECORDED,
    "stablehlo": schemas.sha256,
    "donated": schemas.Either(None, [schemas.size]),
    "outcome": Any,
    "ports": Any,
    "executable": Any,
    "donated leaves": schemas.Either(None, [schemas.size]),
    "numbers": [(schemas.size, schemas.Either(bool, int, float))],
}
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Damaged(Exception):
    """The content of a file has changed since it was written."""


class Folder:
    """Programs by key.

    Args:
        path: the folder; it is created when the first program is stored.
        limit: the maximum total size of all programs in bytes, JAX's included; the least recently used are removed
            first.
    """

    def __init__(self, path: str | os.PathLike[str], limit: int = DEFAULT_LIMIT) -> None:
        self.path = Path(path).absolute()
        self.limit = limit

    def made(self) -> Folder:
        """The folder itself, which now exists.

        Raises:
            ProgramCacheError: others can write to it.
            OSError: it cannot be created.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check()
        return self

    def read(self, key: str, suffix: str = SUFFIX) -> Iterator[tuple[Path, dict[str, Any], bytes]]:
        """Every program under a key: its file, header and bytes. A damaged file is skipped, with a warning.

        Raises:
            ProgramCacheError: others can write to the folder.
        """
        if not self.path.is_dir():
            return
        self.check()
        for file in sorted(self.path.glob(f"{key}-*{suffix}")):
            try:
                header, program = opened(file)
                if f"{header['key']}-{header['variant']}{suffix}" != file.name:
                    raise Damaged("it belongs to a different program")
            except FileNotFoundError:  # removed by another process since
                continue
            except (Damaged, OSError) as error:
                warn(
                    ProgramCacheWarning,
                    "a stored program was rejected, and is compiled again",
                    at=str(file),
                    found=str(error),
                    expected="the unmodified file that plait wrote",
                    do="ignore it if it happens once (plait replaces the file); check the disk if it happens again",
                )
                continue
            yield file, header, program

    def headers(self, suffix: str = SUFFIX) -> Iterator[tuple[Path, dict[str, Any]]]:
        """All programs: file and header. Files that cannot be read, or are damaged, are left out."""
        for file in sorted(self.path.glob(f"*{suffix}")):
            with contextlib.suppress(Damaged, OSError):
                yield file, opened(file)[0]

    def used(self, file: Path) -> None:
        """Record that a program was used."""
        with contextlib.suppress(OSError):
            os.utime(file)

    def write(self, header: dict[str, Any], program: bytes, suffix: str = SUFFIX) -> Path:
        """Store a program; ``header`` has its ``key`` and ``variant``.

        Raises:
            ProgramCacheError: others can write to the folder.
            OSError: the disk is full, or the folder cannot be written to.
        """
        self.made()
        rest = json.dumps(header, separators=(",", ":")).encode() + b"\n" + program
        file = self.path / f"{header['key']}-{header['variant']}{suffix}"
        with written_whole(file) as draft:
            draft.touch(mode=0o600)
            draft.write_bytes(_MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        self.trim(file)
        return file

    def files(self) -> Iterator[tuple[Path, float, int]]:
        """All files of programs, JAX's included: each with the time of its last use, and its size in bytes.

        JAX does not say when it used a file. The file system does, most of them to the day.
        """
        for suffix in (SUFFIX, REFUSED):
            for file in self.path.glob(f"*{suffix}"):
                with contextlib.suppress(OSError):
                    status = file.stat()
                    yield file, status.st_mtime, status.st_size
        for file in (self.path / OF_JAX).rglob("*"):
            with contextlib.suppress(OSError):
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    yield file, max(status.st_mtime, status.st_atime), status.st_size

    def trim(self, newest: Path | None = None) -> None:
        """Remove the least recently used programs until the rest is within the limit.

        Args:
            newest: a program that stays.
        """
        found = [(used, size, file) for file, used, size in self.files()]
        total = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if total <= self.limit:
                return
            if file != newest:
                with contextlib.suppress(OSError):
                    file.unlink()
                total -= size

    def check(self) -> None:
        """Raise if other users can write to the folder.

        Raises:
            ProgramCacheError: the error names the folder, and who can write to it.
        """
        if os.name == "nt":  # there, the mode does not show who can write
            return
        place = self.path.resolve()
        for folder in (place, *place.parents):
            status = folder.stat()
            others = _OTHERS if folder == place else stat.S_IWOTH
            is_open = status.st_mode & others and not (folder != place and status.st_mode & stat.S_ISVTX)
            if not is_open and status.st_uid in (os.geteuid(), 0):
                continue
            whose = "belongs to another user" if status.st_uid not in (os.geteuid(), 0) else "others can write to it"
            raise ProgramCacheError(
                "plait.jit rejects a folder of programs that other users can change",
                at=str(folder),
                found=f"{whose} (mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid})",
                expected="a folder that only you can write to: whoever writes there can run code in your processes",
                do=f"chmod go-w {folder}" if is_open else "pass a folder that belongs to you",
            )


def opened(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and the program, after all checks."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged("it is not a regular file")
        if os.name != "nt" and (status.st_mode & _OTHERS or status.st_uid not in (os.geteuid(), 0)):
            raise Damaged(f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid})")
        content = opened.read()
    line, _, rest = content.partition(b"\n")
    if not line.startswith(_MAGIC):
        raise Damaged("it does not begin like a stored program of this version")
    if line[len(_MAGIC) :] != hashlib.sha256(rest).hexdigest().encode():
        raise Damaged("its checksum does not match: it was truncated or changed")
    head, _, program = rest.partition(b"\n")
    try:
        return schemas.parse_json(head, _REFUSED if file.suffix == REFUSED else _HEADER), program
    except schemas.SchemaError as error:
        raise Damaged(f"its header has {error}") from error
