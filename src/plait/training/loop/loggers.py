"""Loggers of a run: the protocol, JSON lines, and TensorBoard."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import ArgumentError
from ...util.dependencies import require
from ...util.files import given_path, read_file


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
        ArgumentError: the file exists and is not such a log. Raised by the first ``write``; the file is unchanged.

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
        file = self._file = self._file or self._open(step, values)
        row = {"step": step, **{name: value if math.isfinite(value) else str(value) for name, value in values.items()}}
        file.write(json.dumps(row) + "\n")
        file.flush()

    def _open(self, step: int, values: Mapping[str, float]) -> Any:
        """Open the file after the last line of an earlier step, or of other metrics of this step."""
        self._place.parent.mkdir(parents=True, exist_ok=True)
        kept, replaced = 0, b""
        if os.path.lexists(self._place):
            try:
                lines = read_file(self._place).splitlines(keepends=True)
            except OSError as error:
                raise self._no_log(error.strerror or str(error)) from error
            whole = [line for line in lines if line.endswith(b"\n")]  # the last line may be incomplete
            rows = [self._row_of(line) for line in whole]

            def is_before(pair: tuple[dict[str, Any], bytes]) -> bool:
                row, _ = pair
                return row["step"] < step or (row["step"] == step and not row.keys() & values.keys())

            kept = sum(len(line) for _, line in itertools.takewhile(is_before, zip(rows, whole, strict=True)))
            replaced = b"".join(lines)[kept:]
        if replaced:
            with open(f"{self._place}.replaced", "ab") as beside:
                beside.write(replaced if replaced.endswith(b"\n") else replaced + b"\n")
        file = open(self._place, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        file.truncate(kept)
        return file

    def _row_of(self, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
            return {**row, "step": float(row["step"])}
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise self._no_log(f"the line {line!r:.60}") from error

    def _no_log(self, found: str) -> ArgumentError:
        return ArgumentError(
            "the path of the log has a file with other contents",
            at=str(self.path),
            found=found,
            expected="lines of JSON with a step, or no file",
            do="choose another path for the log",
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard:
    """Scalars for TensorBoard, written by tensorboardX.

    In a multi-process run, process 0 writes them, unless ``every_process``.

    Args:
        folder: the folder of the event files.
        every_process: whether ``fit`` lets every process of a run write.

    Raises:
        MissingDependencyError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every_process: bool = False) -> None:
        self.every_process = every_process
        tensorboardX = require("tensorboardX", extra="tensorboard", purpose="to write files for TensorBoard")
        self._writer = tensorboardX.SummaryWriter(os.path.expanduser(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
