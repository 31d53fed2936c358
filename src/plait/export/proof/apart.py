"""Runs an exported file in a new process that cannot import packages which its users may not have.

The process runs the function ``run`` of the file's format (``formats/table.py``); arrays are passed as ``.npz`` files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import ExportError
from ...util.files import given_path
from ...util.words import with_article
from ..formats.table import Format
from .runners import exchange

Arrays = dict[str, np.ndarray]

RUNNERS = Path(__file__).parent / "runners"
TIME_LIMIT = 900  # seconds
LAST_LINES = 12


def run_apart(
    row: Format,
    path: str | os.PathLike[str],
    inputs: Sequence[Arrays],
    *,
    signature: str | None = None,
    python: str | None = None,
) -> list[tuple[Arrays, np.ndarray]]:
    """The outputs of the file at ``path`` for each input, computed in a new process without ``row.blocked``.

    Each comes with the times of a few calls in milliseconds.

    Raises:
        ExportError: the process failed or took longer than the time limit.
    """
    with tempfile.TemporaryDirectory(prefix="plait-validate-") as exchanged:
        for index, arrays in enumerate(inputs):
            exchange.write(Path(exchanged, f"x_{index:04d}.npz"), arrays)
        command = [
            os.path.expanduser(python or sys.executable), "-I",
            str(RUNNERS / "isolated.py"), ",".join(row.blocked), str(RUNNERS / "run.py"),
            str(row.code.__file__), os.fspath(given_path(path, ExportError).absolute()), exchanged, signature or "",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, errors="replace", timeout=TIME_LIMIT)
        except OSError as error:
            raise ExportError(
                "the process for the exported file could not be started",
                at=command[0],
                found=str(error),
                expected="a Python interpreter",
                do="python='/path/to/environment/bin/python'",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                "the exported file took too long in a separate process",
                at=os.fspath(path),
                found=f"no end after {TIME_LIMIT} seconds",
                expected="a file that loads and runs",
                do="validate with a smaller input",
            ) from error
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:]
            raise ExportError(
                "the exported file could not be loaded or run in a separate process",
                at=os.fspath(path),
                found="\n            ".join([f"exit status {done.returncode}, after", *lines]),
                expected=f"{with_article(row.title)} file that runs without {', '.join(row.blocked)}",
                do=f"run it yourself: {' '.join(command[:-2])} FOLDER_WITH_x_0000.npz",
            )
        places = [Path(exchanged, f"y_{index:04d}.npz") for index in range(len(inputs))]
        return [(exchange.read(place), exchange.read_milliseconds(place)) for place in places]
