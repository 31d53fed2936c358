"""The environment of the tests and of the processes that they start, whatever the reader's shell has set."""

import os
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# They change what a process prints, or what plait does, so a test that is about one sets it itself.
SETTINGS = (
    "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED", "COLUMNS", "NO_COLOR", "FORCE_COLOR",
    "PLAIT_CACHE", "PLAIT_EXPLAIN_RETRACES", "PLAIT_GRAPH_MODE", "PLAIT_GRAPH_UPDATES",
)  # fmt: skip


def leave_out_settings() -> None:
    """Remove them from the environment of this process, which the processes that it starts inherit."""
    for name in SETTINGS:
        os.environ.pop(name, None)


def environment(**changes: str) -> dict[str, str]:
    """For a process that imports plait from this checkout, wherever it runs."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), **changes}
