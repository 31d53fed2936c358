"""Tables: what each benchmark returns, printed for people and written as JSON for programs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from typing import Any


@dataclasses.dataclass
class Table:
    """A title, the names of the columns, one list of cells for each row, and remarks."""

    title: str
    columns: list[str]
    rows: list[list[Any]] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        cells = [self.columns, *([_show(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "| "
            + " | ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            + " |"
            for row in cells
        ]
        lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
        return "\n".join([f"### {self.title}", "", *lines, *(f"\n{remark}" for remark in self.remarks), ""])


def _show(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.1f}"


def versions() -> dict[str, str]:
    """What was measured, and with what."""
    found = {
        "python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else str(os.cpu_count()),
    }
    for name in ("jax", "jaxlib", "flax", "equinox", "optax"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
