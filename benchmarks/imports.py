"""Imports: ``import plait`` beside ``import jax`` alone, each in a fresh process, by turns."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from .table import Table

BUDGET = 1.10
PROGRAM = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def seconds(module: str) -> float:
    """CPU time of one import in a fresh process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table."""
    modules = ("jax", "plait") if quick else ("jax", "plait", "flax.nnx", "equinox")
    times: dict[str, list[float]] = {module: [] for module in modules}
    table = Table("import time in a fresh process", ["module", "ms", "relative to jax"])
    for _ in range(1 if quick else 15):
        for module in list(times):
            try:
                times[module].append(seconds(module))
            except subprocess.CalledProcessError:
                del times[module]
                table.remarks.append(f"{module} is not installed: left out.")
    for module, found in times.items():
        ratios = [ours / jax for ours, jax in zip(found, times["jax"], strict=True)]
        table.rows.append([module, 1_000 * statistics.median(found), statistics.median(ratios)])
    yield table
