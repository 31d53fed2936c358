"""Imports: ``import plait`` beside ``import jax`` alone, each in a fresh process, by turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .table import Table

BUDGET = 1.08
PROGRAM = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def seconds(module: str, environment: dict[str, str]) -> float:
    """CPU time of one import in a fresh process."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table. Byte code is kept in a folder of its own, so that no contender is compiled from source."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield _table(environment, quick)


def _table(environment: dict[str, str], quick: bool) -> Table:
    modules = ("jax", "plait") if quick else ("jax", "plait", "flax.nnx", "equinox")
    times: dict[str, list[float]] = {module: [] for module in modules}
    table = Table("import time in a fresh process", ["module", "ms", "relative to jax"])
    for number in range(2 if quick else 16):
        for module in list(times):
            try:
                found = seconds(module, environment)
                if number:  # the first one writes the byte code
                    times[module].append(found)
            except subprocess.CalledProcessError:
                del times[module]
                table.remarks.append(f"{module} is not installed: left out.")
    for module, durations in times.items():
        ratios = [ours / jax for ours, jax in zip(durations, times["jax"], strict=True)]
        table.rows.append([module, 1_000 * statistics.median(durations), statistics.median(ratios)])
    return table
