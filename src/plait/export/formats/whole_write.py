"""An export appears whole or not at all, and where it may be written; ``whole_writes.py`` says how. (rule E20)"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from ... import whole_writes
from ...errors import PlaitError


class ExportPathError(PlaitError, OSError):
    """An export cannot be written at its path: the folder is missing or read-only, or something is there already."""


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path for the body to write to (a file or a folder); on success it becomes ``path``.

    Raises:
        ExportPathError: ``path`` exists, is no empty folder, and ``overwrite`` is false, or its folder cannot be
            written to. Both are found out before the body runs.
    """
    target = Path(path).absolute()
    check = functools.partial(_check_free, target, overwrite=overwrite)
    try:
        with whole_writes.written_whole(target, check) as draft:
            yield draft
    except whole_writes.CannotBeginError as error:
        raise ExportPathError(
            "the export cannot be written into this folder",
            at=str(target.parent),
            found=error.strerror or str(error),
            expected="an existing folder in which files may be made",
            do="make the folder, or choose a path in one that you may write to",
        ) from error
    except Exception as error:  # libraries have errors of their own for a full disk
        if "No space left on device" in str(error) and not isinstance(error, ExportPathError):
            raise ExportPathError(
                "the disk is full",
                at=str(target.parent),
                found=str(error)[:300],
                expected="room for the export",
                do="make room, or choose a path on another disk; what was written is removed, what was there is kept",
            ) from error
        raise


def _check_free(target: Path, *, overwrite: bool) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())  # nothing is lost
    if os.path.lexists(target) and not is_empty and not overwrite:
        raise ExportPathError(
            "there is something at the path of the export already",
            at=str(target),
            found="a folder" if target.is_dir() else "a file",
            expected="a path that is free, or an empty folder",
            do="choose another path, or pass overwrite=True to replace it",
        )
