"""Messages of a process to the ``plait launch`` that started it, as files: that it failed first, that it saves.

first       the number of the process whose error ended the run
saving-1.0  while process 1 saves a checkpoint; its time, on the monotonic clock of the machine, is kept current
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

NUMBER = "JAX_PROCESS_ID"
FOLDER = "PLAIT_LAUNCH_FOLDER"
GRACE = "PLAIT_GRACE"
FIRST = "first"
_SAVING = "saving-"
_BEAT = 1.0  # seconds
_SAVES = itertools.count()
STILL = 20.0  # seconds without a beat after which a process is taken to be stopped, not slow


def is_launched() -> bool:
    """Whether ``plait launch`` has started this process."""
    return FOLDER in os.environ


def tell_first(number: int) -> None:
    """Tell that this process has failed by itself, unless another has before."""
    folder = os.environ.get(FOLDER)
    if folder:
        with contextlib.suppress(OSError):
            Path(folder).mkdir(exist_ok=True)  # something may have cleaned up there
            with open(Path(folder, FIRST), "x") as file:
                file.write(str(number))


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Tell that this process saves a checkpoint, while the body runs."""
    folder, number = os.environ.get(FOLDER), os.environ.get(NUMBER)
    if folder is None:
        yield
        return
    mark, is_over = Path(folder, f"{_SAVING}{number}.{next(_SAVES)}"), threading.Event()
    _beat(mark)
    thread = threading.Thread(target=_beat_until, args=(mark, is_over), daemon=True, name="plait tells that it saves")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with contextlib.suppress(OSError):
            mark.unlink()


def _beat_until(mark: Path, is_over: threading.Event) -> None:
    while not is_over.wait(_BEAT):
        _beat(mark)


def _beat(mark: Path) -> None:
    now = time.monotonic()
    with contextlib.suppress(OSError):
        mark.parent.mkdir(exist_ok=True)  # something may have cleaned up there
        mark.touch()
        os.utime(mark, (now, now))


def first_in(folder: Path) -> int | None:
    """The number of the process that failed first, if it said so."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / FIRST).read_text())
    return None


def saving_in(folder: Path) -> set[int]:
    """The numbers of the processes that save a checkpoint now, and are not stopped."""
    found: set[int] = set()
    for mark in folder.glob(f"{_SAVING}*"):
        with contextlib.suppress(OSError):  # it has just ended
            if time.monotonic() - mark.stat().st_mtime < STILL:
                found.add(int(mark.stem.removeprefix(_SAVING)))
    return found


def grace() -> float | None:
    """Seconds between a signal and the end of the process, as ``plait launch`` or the user has set them."""
    with contextlib.suppress(ValueError, KeyError):
        return float(os.environ[GRACE])
    return None
