"""Loggers of a run: the protocol, JSON lines, and TensorBoard."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ...errors import ArgumentError
from ...util.dependencies import require
from ...util.files import check_is_file, given_path, read_file

_BEGIN = b'{"step": '  # of a line


class Logger(Protocol):
    """The protocol of loggers for ``fit``: any object with these two methods.

    In a multi-process run only those of process 0 are used, unless a logger has an attribute ``every_process`` that is
    true: then it writes in every process, each needs a path of its own, and the metrics are those of its process.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics by name, after a step."""
        ...

    def close(self) -> None:
        """Called when the run has ended."""
        ...


class JsonLines:
    """A log with one line of JSON per logged step: ``{"step": 100, "loss": 0.5}``.

    When a run resumes, lines of later steps are replaced, so each metric of a step is logged once. What was replaced is
    added to a file next to it, ``metrics.jsonl.replaced``: it may be of another run. Every line is flushed at once.
    In a multi-process run, process 0 writes it, unless ``every_process``.
    NaN and infinities are strings, since JSON has no numbers for them.

    Args:
        path: the file; its folder is created.
        every_process: whether ``fit`` lets every process of a run write. Then each needs a path of its own.

    Raises:
        ArgumentError: the file exists and is not such a log, or cannot be written. Raised by the first ``write``; the
            file is unchanged.

    Example:
        >>> log = plait.training.JsonLines("run/metrics.jsonl")
        >>> log.write(100, {"loss": 0.5})
        >>> log.close()
        >>> log.path.read_text()
        '{"step": 100, "loss": 0.5}\\n'
    """

    def __init__(self, path: str | os.PathLike[str], *, every_process: bool = False) -> None:
        self.path = given_path(path, ArgumentError)
        self.every_process = every_process
        self._place = self.path.absolute()  # the working directory may change before the first line
        self._file: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = {"step": step, **{name: value if math.isfinite(value) else str(value) for name, value in values.items()}}
        with _refused_if_not_writable(self.path):
            file = self._file = self._file or self._open(step, values)
            file.write(json.dumps(row, default=float) + "\n")
            file.flush()

    def _open(self, step: int, values: Mapping[str, float]) -> Any:
        """Open the file after the last line of an earlier step, or of other metrics of this step."""
        self._place.parent.mkdir(parents=True, exist_ok=True)
        kept, replaced, beside = 0, b"", f"{self._place}.replaced"
        if os.path.lexists(self._place):
            lines = read_file(self._place).splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]  # the last line may be incomplete
            rows = [self._row_of(line) for line in whole]
            if len(whole) < len(lines) and not _BEGIN.startswith(lines[-1].strip(b"\0")[: len(_BEGIN)]):
                raise _no_log(self.path, f"the line {lines[-1]!r:.60}")

            def is_before(pair: tuple[dict[str, Any], bytes]) -> bool:
                row, _ = pair
                return row["step"] < step or (row["step"] == step and not row.keys() & values.keys())

            kept = sum(len(line) for _, line in itertools.takewhile(is_before, zip(rows, whole, strict=True)))
            replaced = b"".join(lines)[kept:]
        if replaced:
            if os.path.lexists(beside):
                check_is_file(beside, os.stat(beside).st_mode)
            with open(beside, "ab") as file:
                file.write(replaced if replaced.endswith(b"\n") else replaced + b"\n")
        file = open(self._place, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        file.truncate(kept)
        return file

    def _row_of(self, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
            return {**row, "step": float(row["step"])}
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise _no_log(self.path, f"the line {line!r:.60}") from error

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with _refused_if_not_writable(self.path):
                file.close()


class TensorBoard:
    """Scalars for TensorBoard, written by tensorboardX.

    In a multi-process run, process 0 writes them, unless ``every_process``.

    Args:
        folder: the folder of the event files.
        every_process: whether ``fit`` lets every process of a run write.

    Raises:
        ArgumentError: the folder cannot be written.
        MissingDependencyError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every_process: bool = False) -> None:
        self.every_process = every_process
        tensorboardX = require("tensorboardX", extra="tensorboard", purpose="to write files for TensorBoard")
        self.folder = given_path(folder, ArgumentError)
        name = f"{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        with _refused_if_not_writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not its SummaryWriter: that one writes in a thread, and waits for ever once the thread has failed.
            self._writer = tensorboardX.RecordWriter(os.fspath(self.folder / f"events.out.tfevents.{name}"))
        self._event = tensorboardX.proto.event_pb2.Event
        self._write(file_version="brain.Event:2")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        numbers = [{"tag": name, "simple_value": float(value)} for name, value in values.items()]
        with _refused_if_not_writable(self.folder):
            self._write(step=step, summary={"value": numbers})
            self._writer.flush()

    def _write(self, **content: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        with _refused_if_not_writable(self.folder):
            self._writer.close()


@contextlib.contextmanager
def _refused_if_not_writable(path: os.PathLike[str]) -> Iterator[None]:
    """Inside ``with``, errors of the disk become plait's error."""
    try:
        yield
    except OSError as error:
        raise _no_log(path, error.strerror or str(error)) from error


def _no_log(path: os.PathLike[str], found: str) -> ArgumentError:
    return ArgumentError(
        "the log cannot be written to this path",
        at=os.fspath(path),
        found=found,
        expected="no file, or one of such a log, in a folder with write permission",
        do="choose another path for the log",
    )
