"""The figures of the demos: learning curves, a confusion matrix, and bits per byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ground.dependencies import require

CURVES = "curves.png"
CONFUSION = "confusion.png"
BITS = "bits.png"

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


def save_bits(path: Path, rows: Sequence[Mapping[str, Any]], results: Mapping[str, float]) -> None:
    """Bits per byte by step, for training and the held-out text, and the result of each method.

    Args:
        rows: ``step`` with ``bits`` of training, or ``eval/bits``.
        results: bits per held-out byte by the name of the method.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _new_figure(width=9)
    axes = figure.subplots()
    for name, label in (("bits", "training"), ("eval/bits", "held out, averaged weights")):
        found = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot([step for step, _ in found], [bits for _, bits in found], label=label)
    for name, bits in results.items():
        axes.axhline(bits, linestyle=":", linewidth=1, color="gray")
        axes.annotate(f"{name} {bits:.2f}", (1, bits), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set(xlabel="step", ylabel="bits per byte", ylim=(1, 5))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _new_figure(*, width: float) -> Any:
    """An empty figure that is only saved to files, so it needs no display."""
    require("matplotlib", extra="demo", purpose="to draw the figures")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
