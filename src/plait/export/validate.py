"""Proof that an exported file runs where it will be used, and gives the same numbers.

Each kind of file is loaded in a fresh Python process which cannot import what its users may not have:

    saved_model   TensorFlow; not JAX, not plait
    stablehlo     JAX; not plait, not TensorFlow
    onnx          ONNX Runtime; not JAX, not plait, not TensorFlow

The process runs one of the scripts in ``runners/``; arrays travel as ``.npy`` files. The comparison is made here, in
float64.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike

from ..errors import ArgumentError, ExportError
from ..words import with_article
from .validation import ValidationManager as ValidationManager
from .validation_report import (
    FloatingPointDiffReport as FloatingPointDiffReport,
    NonFloatingPointDiffReport as NonFloatingPointDiffReport,
    Status as Status,
    ValidationReport as ValidationReport,
    ValidationReportOption as ValidationReportOption,
)

RUNNERS = Path(__file__).parent / "runners"
TIME_LIMIT = 900  # seconds
LAST_LINES = 12


@dataclasses.dataclass(frozen=True)
class Runner:
    """How one kind of file is run: its script, and the packages that must not be importable there."""

    script: str
    blocked: tuple[str, ...]


KINDS = {
    "saved_model": Runner("run_saved_model.py", ("jax", "jaxlib", "flax", "plait")),
    "stablehlo": Runner("run_stablehlo.py", ("plait", "tensorflow", "flax", "safetensors")),
    "onnx": Runner("run_onnx.py", ("jax", "jaxlib", "jax2onnx", "tensorflow", "flax", "plait")),
}


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What a fresh process made of an exported file.

    ``passed`` says whether shapes and dtypes agree and every value is within the tolerance; ``detail`` says in words
    what was compared, or what differs. The differences are over all examples; infinite where they have no meaning.
    """

    kind: str
    path: str
    max_abs_difference: float
    mean_abs_difference: float
    passed: bool
    detail: str


def validate_export(
    kind: str,
    path: str | os.PathLike[str],
    x: ArrayLike | Sequence[ArrayLike],
    expected: ArrayLike | Sequence[ArrayLike],
    *,
    tolerance: float = 1e-4,
) -> ExportReport:
    """Run the file at ``path`` in a fresh process and compare what it returns with ``expected``.

    Args:
        kind: ``"saved_model"``, ``"stablehlo"`` or ``"onnx"``.
        path: what the ``save_`` function of that kind wrote.
        x: an input, or a list of inputs (of several batch sizes, say), which are run in the same process.
        expected: the output for ``x``, or the list of outputs.
        tolerance: the largest absolute difference that passes.

    Raises:
        ArgumentError: an unknown kind, or lists of different lengths.
        ExportError: the file could not be loaded or run; the message has the last lines of the process.
    """
    if kind not in KINDS:
        raise ArgumentError(
            "there is no export of this kind",
            found=f"kind={kind!r}",
            expected=f"one of {', '.join(map(repr, KINDS))}",
            do="validate_export('stablehlo', path, x, y)",
        )
    inputs, outputs = _examples(x), _examples(expected)
    if len(inputs) != len(outputs):
        raise ArgumentError(
            "each input needs its expected output",
            found=f"{len(inputs)} inputs, {len(outputs)} outputs",
            expected="two lists of one length, or two arrays",
            do="validate_export(kind, path, [x1, x2], [y1, y2])",
        )
    results = run_apart(kind, path, inputs)
    return _compare(kind, path, results, outputs, tolerance)


def run_apart(kind: str, path: str | os.PathLike[str], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the file at ``path`` for each input, computed in a fresh process without ``KINDS[kind].blocked``.

    Raises:
        ExportError: the process failed or took longer than the time limit.
    """
    runner = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="plait-validate-") as exchange:
        for index, array in enumerate(inputs):
            np.save(Path(exchange, f"x_{index}.npy"), array)
        command = [
            sys.executable, "-I",
            str(RUNNERS / "isolated.py"), ",".join(runner.blocked), str(RUNNERS / runner.script),
            os.fspath(Path(path).absolute()), exchange,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                "the exported file took too long in its own process",
                at=os.fspath(path),
                found=f"no end after {TIME_LIMIT} seconds",
                expected="a file that loads and runs",
                do="validate with a smaller input",
            ) from error
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:]
            raise ExportError(
                "the exported file could not be loaded or run in its own process",
                at=os.fspath(path),
                found="\n            ".join([f"exit status {done.returncode}, after", *lines]),
                expected=f"{with_article(kind)} file that runs without {', '.join(runner.blocked)}",
                do=f"run it yourself: {' '.join(command[:-1])} FOLDER_WITH_x_0.npy",
            )
        return [np.load(Path(exchange, f"y_{index}.npy")) for index in range(len(inputs))]


def _examples(arrays: ArrayLike | Sequence[ArrayLike]) -> list[np.ndarray]:
    """A list or tuple is a list of examples; anything else is one example."""
    return [np.asarray(array) for array in (arrays if isinstance(arrays, (list, tuple)) else [arrays])]


def _compare(
    kind: str,
    path: str | os.PathLike[str],
    results: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    tolerance: float,
) -> ExportReport:
    problems = [
        f"example {index}: {result.dtype}{list(result.shape)} instead of {output.dtype}{list(output.shape)}"
        for index, (result, output) in enumerate(zip(results, outputs, strict=True))
        if (result.shape, result.dtype) != (output.shape, output.dtype)
    ]
    if problems:
        return ExportReport(kind, os.fspath(path), float("inf"), float("inf"), False, "; ".join(problems))
    differences = np.concatenate([_difference(result, output) for result, output in zip(results, outputs, strict=True)])
    largest = float(differences.max(initial=0.0))
    mean = float(differences.mean()) if differences.size else 0.0
    passed = largest <= tolerance
    verdict = "within" if passed else "beyond"
    detail = f"{len(outputs)} examples, {differences.size} values, {verdict} {tolerance:g}"
    return ExportReport(kind, os.fspath(path), largest, mean, passed, detail)


def _difference(result: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Absolute differences, flat. Equal infinities, and NaN on both sides, agree; any other NaN is infinitely off."""
    wide = np.complex128 if np.iscomplexobj(output) else np.float64
    a, b = result.astype(wide).ravel(), output.astype(wide).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
