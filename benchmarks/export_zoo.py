"""The export zoo: every model of ``tests/export/zoo/models.py`` in every format, run apart, beside the model itself.

It needs the packages of all formats: TensorFlow, jax2onnx and ONNX Runtime.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from typing import Any

from plait.errors import ExportError
from plait.export import prove
from plait.export.proof.compare import tolerance_of

from .table import Table

PACKAGES = {"saved_model": "tensorflow", "litert": "tensorflow", "onnx": "jax2onnx"}


def run(*, quick: bool = False) -> Iterator[Table]:
    """How far the outputs are from the model's, and what a call takes there."""
    from tests.export.zoo.models import FORMATS, ZOO, Eager

    formats = [name for name in FORMATS if not quick and importlib.util.find_spec(PACKAGES.get(name, "jax"))]
    formats = formats or ["stablehlo"]
    columns = ["model", *formats, "tolerance"]
    errors = Table("export_zoo: largest difference from the eager model, over three sizes", columns)
    times = Table("export_zoo: ms of a call, at the last size", ["model", *formats])
    for entry in ZOO[:2] if quick else ZOO:
        if any(importlib.util.find_spec(package) is None for package in entry.packages):
            continue
        eager, examples = Eager(entry), entry.examples()
        tolerance = max(tolerance_of(y) for example in examples for y in eager(**example).values())
        found = {kind: _cells(entry, kind, examples, eager) for kind in formats}
        errors.rows.append([entry.name, *(cell for cell, _ in found.values()), f"{tolerance:.1e}"])
        times.rows.append([entry.name, *(time for _, time in found.values())])
    yield errors
    yield times


def _cells(entry: Any, kind: str, examples: Any, eager: Any) -> tuple[str, float | str]:
    if kind in entry.refused:
        return "refused", "-"
    with tempfile.TemporaryDirectory() as folder:
        try:
            entry.save(f"{folder}/model", [kind])
            (report,), _ = prove(f"{folder}/model", inputs=examples, reference=eager)
        except ExportError as error:
            return f"fails: {str(error).splitlines()[0]}", "-"
    shown = f"{report.max_abs_difference:.1e}"
    return shown if report.passed else f"{shown}, too far", report.milliseconds[-1]
