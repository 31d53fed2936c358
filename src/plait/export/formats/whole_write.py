"""Atomic writes of exports, and checks of their path, by ``whole_writes.py``. (rule E20)"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import ExportError, PlaitError
from ...util import whole_writes
from ...util.files import given_path


class ExportPathError(PlaitError, OSError):
    """An export cannot be written to its path: the folder is missing or read-only, or the path exists."""


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path for the body to write a file or folder to; on success, rename it to ``path``.

    Raises:
        ExportPathError: ``path`` exists, is not an empty folder, and ``overwrite`` is false, or its parent is not
            writable; both are checked before the body runs. Or see ``whole_writes.written_whole``.
    """
    target = given_path(path, ExportPathError).absolute()
    check = functools.partial(_check_free, target, overwrite=overwrite)
    with whole_writes.written_whole(target, "the export", ExportPathError, check) as draft:
        yield draft


def check_opens(title: str, run: Callable[[str, str | None], Any], draft: Path) -> None:
    """Raise if the runtime of a file, where it is installed, does not open what is about to be its content. (rule E32)

    Args:
        run: of the format.

    Raises:
        ExportError: gives the reason of the runtime.
    """
    try:
        run(os.fspath(draft), None)
    except ImportError:
        return
    except Exception as error:  # each runtime raises its own exceptions
        raise ExportError(
            f"the {title} file that the converter wrote cannot be opened, and is not kept",
            found=f"{type(error).__name__}: {error}"[:600],
            expected="a file that its runtime opens",
            do="export to another format, such as formats=['stablehlo'], and report this model",
        ) from error


def _check_free(target: Path, *, overwrite: bool) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())  # nothing is lost
    if os.path.lexists(target) and not is_empty and not overwrite:
        raise ExportPathError(
            "the path of the export already exists",
            at=str(target),
            found="a folder" if target.is_dir() else "a file",
            expected="a path that does not exist, or an empty folder",
            do="choose another path, or pass overwrite=True to replace it",
        )
