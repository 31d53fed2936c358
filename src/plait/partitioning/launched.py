"""What a process tells ``plait launch``, which started it, in files of a folder: that it failed first, that it saves.

first       the number of the process whose error ended the run
saving-1    while process 1 writes a checkpoint
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NUMBER = "JAX_PROCESS_ID"
FOLDER = "PLAIT_LAUNCH_FOLDER"
GRACE = "PLAIT_GRACE"
FIRST = "first"
_SAVING = "saving-"


def tell_first(number: int) -> None:
    """Tell that this process has failed by itself, unless another has before."""
    folder = os.environ.get(FOLDER)
    if folder:
        with contextlib.suppress(OSError), open(Path(folder, FIRST), "x") as file:
            file.write(str(number))


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Tell that this process writes a checkpoint, while the body runs."""
    folder, number = os.environ.get(FOLDER), os.environ.get(NUMBER)
    mark = None if folder is None else Path(folder, f"{_SAVING}{number}")
    with contextlib.suppress(OSError):
        if mark is not None:
            mark.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if mark is not None:
                mark.unlink()


def first_in(folder: Path) -> int | None:
    """The number of the process that failed first, if it said so."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / FIRST).read_text())
    return None


def saving_in(folder: Path) -> set[int]:
    """The numbers of the processes that write a checkpoint now."""
    return {int(mark.name.removeprefix(_SAVING)) for mark in folder.glob(f"{_SAVING}*")}


def grace() -> float | None:
    """Seconds between a signal and the end of the process, as ``plait launch`` or the user has set them."""
    with contextlib.suppress(ValueError, KeyError):
        return float(os.environ[GRACE])
    return None
