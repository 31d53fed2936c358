"""Programs that the last process of the same name used, read while this one builds its model. (rule W17)

Giving the bytes of a program to the client of its device is most of what loading it takes, and needs no Python. So a
thread does it as soon as JAX has compiled anything, and thus has its devices. Which program a call needs is decided as
without it: what was read ahead only replaces reading the very same bytes again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from .._compat import Executable, read_binary
from .descriptions import Describer
from .environment import environment
from .folder import Folder, opened
from .forms import Forms


class Read(NamedTuple):
    """An executable as it is stored, and as the device's client has it."""

    executable: Executable
    binary: Any


class Ahead:
    """The programs that are read ahead.

    Args:
        folder: where they are.
        names: the names of their files, in the order in which they are needed.

    Raises:
        Unrecordable: a setting has a value that cannot be compared with another process.
    """

    def __init__(self, folder: Folder, names: Sequence[str]) -> None:
        self._folder = folder
        self._environment = environment(None, Describer())
        self._readings: dict[str, Future[Read | None]] = {name: Future() for name in names}
        self._thread = threading.Thread(target=self._run, args=(dict(self._readings),), daemon=True)
        self._thread.start()

    def taken(self, name: str, executable: Executable) -> Any:
        """What the device's client made of a file, once; ``None`` if that was not read, or is something else."""
        reading = self._readings.pop(name, None)
        if reading is None or reading.cancel() or reading.exception() is not None:
            return None
        read = reading.result()
        return read.binary if read is not None and read.executable == executable else None

    def drop(self) -> None:
        """Read nothing more, and let go of what was read."""
        for reading in [*self._readings.values()]:  # another thread may take one
            reading.cancel()
        self._readings.clear()
        self._thread.join()

    def _run(self, readings: dict[str, Future[Read | None]]) -> None:
        while readings:
            name = next(iter(readings))
            reading = readings.pop(name)
            if reading.set_running_or_notify_cancel():
                try:
                    reading.set_result(self._read(name))
                except Exception as error:  # whoever needs the file reads it again, and says what is wrong
                    reading.set_exception(error)

    def _read(self, name: str) -> Read | None:
        """A program, if it is one for this environment: another machine's might not even be readable."""
        self._folder.check()
        header, binary = opened(self._folder.path / name)
        parts = header["parts"]
        if header["donated leaves"] is not None or any(parts.get(k) != v for k, v in self._environment.items()):
            return None
        executable = dataclasses.replace(Forms([]).read(header["executable"]), binary=binary)
        return Read(executable, read_binary(executable, None))
