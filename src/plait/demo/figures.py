"""The figures of a run: learning curves and confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dependencies import require

CURVES = "curves.png"
CONFUSION = "confusion.png"

LABELS = {"train": "train (with dropout, images shifted)", "test": "test"}


def save_curves(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Loss and accuracy by epoch, for training and test.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _new_figure(width=9)
    epochs = [row["epoch"] for row in rows]
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part, label in LABELS.items():
            axes.plot(epochs, [row[f"{part}_{name}"] for row in rows], marker="o", markersize=3, label=label)
        axes.set(title=name, xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def save_confusion(path: Path, labels: np.ndarray, predictions: np.ndarray, *, classes: int) -> None:
    """The confusion matrix: how often each digit (rows) was predicted as each (columns).

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    counts = np.zeros((classes, classes), int)
    np.add.at(counts, (labels, predictions), 1)
    figure = _new_figure(width=5)
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > counts.max() / 2 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color)
    axes.set(
        title=f"{counts.trace()} of {counts.sum()} test images right",
        xlabel="predicted",
        ylabel="true",
        xticks=range(classes),
        yticks=range(classes),
    )
    figure.savefig(path)


def _new_figure(*, width: float) -> Any:
    """An empty figure that is only saved to files, so it needs no display."""
    require("matplotlib", extra="demo", purpose="to draw the figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
