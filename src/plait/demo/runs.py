"""What a run leaves in its folder, and where a run that was interrupted goes on.

    metrics.jsonl    one line for each epoch
    checkpoints/     epoch-0001, epoch-0002, …

Each checkpoint has in its manifest the options that a run must keep to go on with the same result.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.layout import latest, read_manifest_text
from ..checkpoint.orbax import restore, save
from ..errors import ArgumentError, CheckpointError
from ..whole_writes import write_whole

METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"

_EPOCH = re.compile(r"epoch-([0-9]+)")


class Run:
    """A folder that a training run writes to.

    Args:
        folder: where; it is made when the run starts.
        options: what must be the same when the run goes on, for example ``{"seed": 0}``.
    """

    def __init__(self, folder: Path, options: Mapping[str, int]) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.options = dict(options)
        self.rows: list[dict[str, Any]] = []
        self.passed_over: list[Path] = []

    def resume(self, objects: Any) -> int:
        """Bring the objects to the newest whole checkpoint; nothing on disk is changed.

        Newer ones that are half-written or damaged are listed in ``passed_over``.

        Returns:
            The number of epochs that are done; 0 if there is no checkpoint at all.

        Raises:
            CheckpointError: there are checkpoints and none of them is whole, or the newest is of another run.
        """
        newest = latest(self.checkpoints)
        if newest is None:
            if self._numbered():
                raise CheckpointError(
                    "there is no whole checkpoint to go on from",
                    at=str(self.checkpoints),
                    found=f"{len(self._numbered())} half-written or damaged",
                    expected="at least one whole checkpoint",
                    do="leave out --resume to start from the beginning",
                )
            return 0
        metrics = read_manifest_text(newest)["metrics"]
        self._check_options(newest, metrics)
        restore(newest, objects)
        epochs = metrics["epoch"]
        self.passed_over = [place for number, place in self._numbered() if number > epochs]
        self.rows = [row for row in _read_rows(self.folder / METRICS) if row["epoch"] <= epochs]
        return epochs

    def _check_options(self, place: Path, metrics: Mapping[str, Any]) -> None:
        stored = {name: metrics.get(name) for name in self.options}
        if stored != self.options or "epoch" not in metrics:
            raise CheckpointError(
                "the checkpoint belongs to a run with other options",
                at=str(place),
                found=_flags(stored),
                expected=_flags(self.options),
                do=f"resume with {_flags(stored)}, or leave out --resume to start from the beginning",
            )

    def start(self, epochs: int) -> None:
        """Make the folder ready for the epochs after the first ``epochs``: later ones of an earlier run go away.

        Raises:
            ArgumentError: the folder cannot be written to.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder), tempfile.TemporaryFile(dir=self.checkpoints):
                pass
            for number, place in self._numbered():
                if number > epochs:
                    shutil.rmtree(place)
            for place in self.checkpoints.glob(".epoch-*.partial"):
                shutil.rmtree(place, ignore_errors=True)
            self._write_rows()
        except OSError as error:
            raise ArgumentError(
                "the output folder cannot be written to",
                at=str(self.folder),
                found=error.strerror or str(error),
                expected="a folder in which files may be made",
                do="give another one: --output FOLDER",
            ) from error

    def end_epoch(self, row: Mapping[str, Any], objects: Any) -> None:
        """Write the line of an epoch and its checkpoint."""
        # The line first: if the run stops between the two, resuming drops the line and repeats the epoch.
        self.rows.append(dict(row))
        self._write_rows()
        place = self.checkpoints / f"epoch-{row['epoch']:04d}"
        save(place, objects, step=row["step"], metrics={**row, **self.options}, overwrite=True)

    def _write_rows(self) -> None:
        write_whole(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows).encode())

    def _numbered(self) -> list[tuple[int, Path]]:
        """The folders that have the name of a checkpoint of this program, whole or not."""
        places = sorted(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        named = [(_EPOCH.fullmatch(place.name), place) for place in places if place.is_dir()]
        return [(int(match[1]), place) for match, place in named if match]


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """The lines that can be read; one that a crash cut off cannot."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and "epoch" in row]


def _flags(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
