"""The folder of a run, and how an interrupted run resumes.

    options.json     the options that must not change, which mark the folder as one of a run
    metrics.jsonl    one line for each epoch
    checkpoints/     epoch-0001, epoch-0002, …

The manifest of each checkpoint has the options that must not change when a run resumes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.layout import latest, manifest_at
from ..checkpoint.orbax import restore, save
from ..errors import ArgumentError, CheckpointError
from ..ground.whole_writes import write_whole

OPTIONS = "options.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"

_EPOCH = re.compile(r"epoch-([0-9]+)")


class Run:
    """A folder that a training run writes to.

    Args:
        folder: the folder; it is created when the run starts.
        options: options that must be the same when the run resumes, for example ``{"seed": 0}``.
    """

    def __init__(self, folder: Path, options: Mapping[str, int]) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.options = dict(options)
        self.rows: list[dict[str, Any]] = []
        self.passed_over: list[Path] = []

    def resume(self, objects: Any) -> int:
        """Restore the newest intact checkpoint into the objects; no file changes.

        Newer ones that are incomplete or damaged are listed in ``passed_over``.

        Returns:
            The number of completed epochs; 0 if there is no checkpoint.

        Raises:
            CheckpointError: all checkpoints are damaged, or the newest is from another run.
        """
        newest = latest(self.checkpoints)
        if newest is None:
            if self._numbered():
                raise CheckpointError(
                    "there is no intact checkpoint to resume from",
                    at=str(self.checkpoints),
                    found=f"{len(self._numbered())} incomplete or damaged",
                    expected="at least one intact checkpoint",
                    do="omit --resume to start from the beginning",
                )
            return 0
        metrics = manifest_at(newest).metrics
        self._check_options(newest, metrics)
        restore(newest, objects)
        epochs = metrics["epoch"]
        self.passed_over = [place for number, place in self._numbered() if number > epochs]
        self.rows = [row for row in _read_rows(self.folder / METRICS) if row["epoch"] <= epochs]
        return epochs

    def _check_options(self, place: Path, metrics: Mapping[str, Any]) -> None:
        stored = {name: metrics.get(name) for name in self.options}
        if stored != self.options or "epoch" not in metrics:
            raise other_options(place, stored, self.options)

    def start(self, epochs: int, results: Iterable[str] = ()) -> None:
        """Prepare the folder for the epochs after the first ``epochs``: remove later ones of an earlier run.

        Args:
            results: the names of other files that the run will replace.

        Raises:
            ArgumentError: the folder is not writable, or has files of other programs under the names of a run.
        """
        try:
            if not epochs:
                check_own(self.folder, self.options, (METRICS, CHECKPOINTS, *results))
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder), tempfile.TemporaryFile(dir=self.checkpoints):
                pass
            for number, place in self._numbered():
                if number > epochs:
                    shutil.rmtree(place)
            for place in self.checkpoints.glob(".epoch-*.partial"):
                shutil.rmtree(place, ignore_errors=True)
            write_whole(self.folder / OPTIONS, json.dumps(self.options).encode())
            self._write_rows()
        except OSError as error:
            raise not_writable(self.folder, error) from error

    def end_epoch(self, row: Mapping[str, Any], objects: Any) -> None:
        """Write the line of an epoch and its checkpoint."""
        # The line first: if the run stops between the two, resuming removes the line and repeats the epoch.
        self.rows.append(dict(row))
        self._write_rows()
        place = self.checkpoints / f"epoch-{row['epoch']:04d}"
        save(place, objects, step=row["step"], metrics={**row, **self.options}, overwrite=True)

    def _write_rows(self) -> None:
        write_whole(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows).encode())

    def _numbered(self) -> list[tuple[int, Path]]:
        """The folders named like a checkpoint of this program, intact or not."""
        places = sorted(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        named = [(_EPOCH.fullmatch(place.name), place) for place in places if place.is_dir()]
        return [(int(match[1]), place) for match, place in named if match]


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """The readable lines; a crash may have truncated the last one."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and "epoch" in row]


def stored_options(folder: Path) -> dict[str, Any] | None:
    """The options of the run in a folder; ``None`` if no run has written there."""
    try:
        found = json.loads((folder / OPTIONS).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_own(folder: Path, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise if a folder has something under the names of a run's files, but not the options of such a run.

    Raises:
        ArgumentError: names what would be deleted.
    """
    taken = [name for name in names if os.path.lexists(folder / name)]
    stored = stored_options(folder)
    if taken and (stored is None or stored.keys() != options.keys()):
        raise ArgumentError(
            "the output folder has files that this command did not write, and would delete",
            at=str(folder),
            found=", ".join(taken),
            expected=f"a new folder, or one of an earlier run of this command, with its {OPTIONS}",
            do="choose another one: --output FOLDER; or delete these files yourself",
        )


def other_options(place: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> CheckpointError:
    """The error for a run that resumes with different options than it began with."""
    return CheckpointError(
        "the checkpoint belongs to a run with different options",
        at=str(place),
        found=_flags(stored),
        expected=_flags(wanted),
        do=f"resume with {_flags(stored)}, or omit --resume to start from the beginning",
    )


def not_writable(folder: Path, error: OSError) -> ArgumentError:
    """The error for an output folder in which no file can be created."""
    return ArgumentError(
        "the output folder is not writable",
        at=str(folder),
        found=error.strerror or str(error),
        expected="a folder with write permission",
        do="choose another one: --output FOLDER",
    )


def _flags(options: Mapping[str, Any]) -> str:
    """Options as written in a command; a flag that is off is omitted."""
    texts = ((f"--{name.replace('_', '-')}", value) for name, value in options.items() if value is not False)
    return " ".join(flag if value is True else f"{flag} {value}" for flag, value in texts) or "no options"
