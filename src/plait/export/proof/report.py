"""Proof that an exported file runs where it will be used, and gives the same numbers.

Each kind of file is loaded in a fresh Python process which cannot import what its users may not have:

    saved_model   TensorFlow; not JAX, not plait
    stablehlo     JAX; not plait, not TensorFlow
    onnx          ONNX Runtime; not JAX, not plait, not TensorFlow
    litert        its interpreter (that of TensorFlow where there is no other); not JAX, not plait

The process runs one of the scripts in ``runners/``; arrays travel as ``.npz`` files. The comparison is made here, in
float64.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...errors import ArgumentError, ExportError
from ...words import with_article
from .runners import exchange

Arrays = dict[str, np.ndarray]

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
    "litert": Runner("run_litert.py", ("jax", "jaxlib", "flax", "plait")),
}
# What passes by default, in roundings of a dtype of so many bits, relative to the largest value: sums come in another
# order. Where bits are few, sums are kept in wider numbers, and a hundred roundings would let everything pass.
ROUNDINGS = {16: 8, 32: 256, 64: 256}


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What a fresh process made of an exported file.

    ``passed`` says whether names, shapes and dtypes agree and every value is within the tolerance; ``detail`` says in
    words what was compared, or what differs. The differences are over all examples; infinite where they have no
    meaning. ``milliseconds`` is the median time of a call there, for each example.
    """

    kind: str
    path: str
    max_abs_difference: float
    mean_abs_difference: float
    passed: bool
    detail: str
    milliseconds: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it; an infinite difference is the text ``"inf"``."""
        found = dataclasses.asdict(self)
        return {key: str(value) if value == float("inf") else value for key, value in found.items()}


def validate_export(
    kind: str,
    path: str | os.PathLike[str],
    x: Any,
    expected: Any,
    *,
    tolerance: float | None = None,
    signature: str | None = None,
    python: str | None = None,
) -> ExportReport:
    """Run the file at ``path`` in a fresh process and compare what it returns with ``expected``.

    Args:
        kind: ``"saved_model"``, ``"stablehlo"``, ``"onnx"`` or ``"litert"``.
        path: what the ``save_`` function of that kind wrote.
        x: an input, or a list of inputs (of several batch sizes, say), which are run in the same process. Where the
            file has several inputs, or one of another name than ``x``, a dictionary, or a list of them.
        expected: the output for ``x``, or the list of outputs; dictionaries where there are several outputs.
        tolerance: the largest absolute difference that passes; by default it follows from dtype and size of the values:
            integers must be equal, and floating-point numbers may be 256 roundings of the largest value apart, or 8 if
            they have 16 bits.
        signature: which function of the file; by default its first.
        python: the interpreter that runs it, such as that of an environment with an older TensorFlow; by default this
            one. It needs NumPy and the packages of the format.

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
    inputs, outputs = _examples(x, "x"), _examples(expected, "y")
    if len(inputs) != len(outputs):
        raise ArgumentError(
            "each input needs its expected output",
            found=f"{len(inputs)} inputs, {len(outputs)} outputs",
            expected="two lists of one length, or two arrays",
            do="validate_export(kind, path, [x1, x2], [y1, y2])",
        )
    results = run_apart(kind, path, inputs, signature=signature, python=python)
    times = tuple(float(np.median(milliseconds)) for _, milliseconds in results)
    return dataclasses.replace(
        _compare(kind, path, [found for found, _ in results], outputs, tolerance), milliseconds=times
    )


def run_apart(
    kind: str,
    path: str | os.PathLike[str],
    inputs: Sequence[Arrays],
    *,
    signature: str | None = None,
    python: str | None = None,
) -> list[tuple[Arrays, np.ndarray]]:
    """The outputs of the file at ``path`` for each input, computed in a fresh process without ``KINDS[kind].blocked``.

    With each come the milliseconds of a few calls.

    Raises:
        ExportError: the process failed or took longer than the time limit.
    """
    runner = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="plait-validate-") as exchanged:
        for index, arrays in enumerate(inputs):
            exchange.write(Path(exchanged, f"x_{index:04d}.npz"), arrays)
        command = [
            python or sys.executable, "-I",
            str(RUNNERS / "isolated.py"), ",".join(runner.blocked), str(RUNNERS / runner.script),
            os.fspath(Path(path).absolute()), exchanged, signature or "",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT)
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
                do=f"run it yourself: {' '.join(command[:-2])} FOLDER_WITH_x_0000.npz",
            )
        places = [Path(exchanged, f"y_{index:04d}.npz") for index in range(len(inputs))]
        return [(exchange.read(place), exchange.read_milliseconds(place)) for place in places]


def _examples(given: Any, name: str) -> list[Arrays]:
    """A list or tuple is a list of examples; anything else is one example. A bare array has the usual name."""
    examples = given if isinstance(given, (list, tuple)) else [given]
    named = [each if isinstance(each, Mapping) else {name: each} for each in examples]
    return [{key: np.asarray(array) for key, array in each.items()} for each in named]


def _compare(
    kind: str,
    path: str | os.PathLike[str],
    results: Sequence[Arrays],
    outputs: Sequence[Arrays],
    tolerance: float | None,
) -> ExportReport:
    pairs = [
        (dict.fromkeys(output, *result.values()) if len(result) == 1 and list(output) == ["y"] else result, output)
        for result, output in zip(results, outputs, strict=True)
    ]
    problems = [text for index, pair in enumerate(pairs) for text in _unlike(f"example {index}", *pair)]
    if problems:
        return ExportReport(kind, os.fspath(path), float("inf"), float("inf"), False, "; ".join(problems))
    found = [
        (_difference(r[key], o[key]), tolerance_of(o[key]) if tolerance is None else tolerance)
        for r, o in pairs
        for key in o
    ]
    differences = np.concatenate([difference for difference, _ in found] or [np.zeros(0)])
    largest = float(differences.max(initial=0.0))
    mean = float(differences.mean()) if differences.size else 0.0
    passed = all(difference.max(initial=0.0) <= limit for difference, limit in found)
    limit = max((limit for _, limit in found), default=0.0)
    verdict = "within" if passed else "beyond"
    detail = f"{len(outputs)} examples, {differences.size} values, {verdict} {limit:.3g}"
    return ExportReport(kind, os.fspath(path), largest, mean, passed, detail)


def _unlike(where: str, result: Arrays, output: Arrays) -> list[str]:
    """How the names, shapes and dtypes of outputs differ from what was expected."""
    if set(result) != set(output):
        return [f"{where}: outputs {', '.join(sorted(result))} instead of {', '.join(sorted(output))}"]
    return [
        f"{where}: {'' if key == 'y' else f'{key} is '}{_shown(result[key])} instead of {_shown(output[key])}"
        for key in output
        if (result[key].shape, result[key].dtype) != (output[key].shape, output[key].dtype)
    ]


def _shown(array: np.ndarray) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def tolerance_of(output: np.ndarray) -> float:
    """The largest difference from an expected output that passes, if nothing else is asked for."""
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        return 0.0
    wide = np.abs(output.astype(np.complex128 if np.iscomplexobj(output) else np.float64))
    largest = wide[np.isfinite(wide)].max(initial=1.0)
    kind = jnp.finfo(output.dtype)
    return float(ROUNDINGS.get(kind.bits, 1) * kind.eps * largest)


def _difference(result: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Absolute differences, flat. Equal infinities, and NaN on both sides, agree; any other NaN is infinitely off."""
    wide = np.complex128 if np.iscomplexobj(output) else np.float64
    a, b = result.astype(wide).ravel(), output.astype(wide).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
