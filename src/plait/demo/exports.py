"""Exports a trained model to files, runs each in a new process, and compares it with the model."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from ..core.objects.module import Module
from ..errors import ExportError
from ..export.formats.options import WriteOptions
from ..export.formats.table import FORMATS, Format
from ..export.program.input_spec import InputSpec
from ..export.program.program import SIGNATURE, Program, program_of
from ..export.proof.report import validate_export

TOLERANCE = 1e-4
EXPORTS = "exports"

# TensorFlow reads these on import. It logs that it is a generic build and that oneDNN is on, the latter before it reads
# the log level.
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one export. ``status`` is ``"ok"``, ``"skipped"`` or ``"failed"``."""

    title: str
    status: str
    text: str


def iter_exports(model: Module, folder: Path, images: np.ndarray) -> Iterator[Outcome]:
    """Write each file, run it on all ``images`` and compare its logits with the model's.

    Args:
        model: a model in its deterministic form (``model.eval()``).
        folder: the output folder; files of an earlier run are replaced.
        images: ``(count, height, width, channels)``; the files accept any ``count``.
    """
    for name, value in QUIET_TENSORFLOW.items():
        os.environ.setdefault(name, value)
    folder.mkdir(parents=True, exist_ok=True)
    program = program_of(model, InputSpec(("batch", *images.shape[1:])))
    # By default, accelerators multiply float32 at lower precision, which alone would exceed the tolerance.
    with jax.default_matmul_precision("highest"):
        logits = np.asarray(jax.jit(program.call)(program.weights, {"x": images})["y"])
        for row in FORMATS.values():
            yield _export(row, program, folder / row.place, images, logits)


def _export(row: Format, program: Program, path: Path, images: np.ndarray, logits: np.ndarray) -> Outcome:
    missing = [package for package in row.packages if importlib.util.find_spec(package) is None]
    if missing:
        what = f"'plait[{row.extra}]'" if row.extra else " ".join(missing)
        return Outcome(row.title, "skipped", f"pip install {what}")
    try:
        row.code.write({SIGNATURE: program}, path, WriteOptions(overwrite=True))
        report = validate_export(row.name, path, images, logits, tolerance=TOLERANCE)
    except ExportError as error:
        return Outcome(row.title, "failed", str(error))
    found = f"max |difference| {report.max_abs_difference:.1e} over {len(images)} images"
    if not report.passed:
        return Outcome(row.title, "failed", f"{found}, more than {TOLERANCE:g}: {report.detail}")
    return Outcome(row.title, "ok", found)


def remove_exports(folder: Path) -> None:
    """Remove the files that ``iter_exports`` writes, and no others."""
    for row in FORMATS.values():
        path = folder / row.place
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
