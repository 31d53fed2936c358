"""Validates that an exported file runs without plait, and returns the same values."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..formats.table import FORMATS
from ..program.checks import check_equal, check_known
from .apart import Arrays, run_apart
from .compare import agree, difference, tolerance_of
from .runners import exchange


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The result of running an exported file in a new process.

    ``passed`` is whether names, shapes and dtypes agree and every value is within the tolerance; ``detail`` describes
    what was compared, or what differs. The differences are over all examples, and infinite if undefined.
    ``milliseconds`` is the median time of a call there, for each example.
    """

    kind: str
    path: str
    max_abs_difference: float
    mean_abs_difference: float
    passed: bool
    detail: str
    milliseconds: tuple[float, ...] = ()


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
    """Run the file at ``path`` in a new process and compare its outputs with ``expected``.

    Args:
        kind: ``"saved_model"``, ``"stablehlo"``, ``"onnx"`` or ``"litert"``.
        path: the file or folder that the ``save_`` function of that kind wrote.
        x: an input, or a list of inputs (for example of several batch sizes), which run in the same process. For a file
            with several inputs, or one not named ``x``: a dictionary, or a list of dictionaries.
        expected: the output for ``x``, or the list of outputs; dictionaries if there are several outputs.
        tolerance: the maximum absolute difference; the default depends on dtype and size of the values: integers must
            be equal, and floats may differ by 256 roundings of the largest value, or by 8 if they have 16 bits.
        signature: the function of the file; by default its first.
        python: the interpreter that runs it, for example of an environment with an older TensorFlow; by default the
            current one. It needs NumPy and the packages of the format.

    Raises:
        ArgumentError: the kind is unknown, or the lists have different lengths.
        ExportError: the file could not be loaded or run; has the last lines of the process's output.
    """
    check_known("there is no export of this kind", [kind], FORMATS, "validate_export('stablehlo', path, x, y)")
    inputs, outputs = _examples(x, "x"), _examples(expected, "y")
    found, expected = f"{len(outputs)} outputs", f"{len(inputs)} outputs"
    advice = "validate_export(kind, path, [x1, x2], [y1, y2])"
    check_equal("each input needs its expected output", found, expected, advice)
    results = run_apart(FORMATS[kind], path, inputs, signature=signature, python=python)
    times = tuple(float(np.median(milliseconds)) for _, milliseconds in results)
    return ExportReport(kind, os.fspath(path), *_compare([found for found, _ in results], outputs, tolerance), times)


def _examples(given: Any, name: str) -> list[Arrays]:
    """A list or tuple is a list of examples; anything else is one example. A bare array has the usual name."""
    examples = given if isinstance(given, (list, tuple)) else [given]
    named = [each if isinstance(each, Mapping) else {name: each} for each in examples]
    return [{key: exchange.array_of(value) for key, value in each.items()} for each in named]


def _compare(
    results: Sequence[Arrays], outputs: Sequence[Arrays], tolerance: float | None
) -> tuple[float, float, bool, str]:
    """The largest and the mean difference, whether all are within the tolerance, and a description."""
    pairs = [
        (dict.fromkeys(output, *result.values()) if len(result) == 1 and list(output) == ["y"] else result, output)
        for result, output in zip(results, outputs, strict=True)
    ]
    problems = [text for index, pair in enumerate(pairs) for text in _unlike(f"example {index}", *pair)]
    if problems:
        return float("inf"), float("inf"), False, "; ".join(problems)
    found = [
        (difference(r[key], o[key]), tolerance_of(o[key]) if tolerance is None else tolerance)
        for r, o in pairs
        for key in o
    ]
    differences = np.concatenate([difference for difference, _ in found] or [np.zeros(0)])
    largest = float(differences.max(initial=0.0))
    mean = float(differences.mean()) if differences.size else 0.0
    passed = all(agree(differences, limit).all() for differences, limit in found)
    limit = max((limit for _, limit in found), default=0.0)
    verdict = "within" if passed else "beyond"
    detail = f"{len(outputs)} examples, {differences.size} values, {verdict} {limit:.3g}"
    return largest, mean, passed, detail


def _unlike(where: str, result: Arrays, output: Arrays) -> list[str]:
    """How the names, shapes and dtypes of outputs differ from the expected ones."""
    if set(result) != set(output):
        return [f"{where}: outputs {', '.join(sorted(result))} instead of {', '.join(sorted(output))}"]
    return [
        f"{where}: {'' if key == 'y' else f'{key} is '}{_shown(result[key])} instead of {_shown(output[key])}"
        for key in output
        if _shown(result[key]) != _shown(output[key])
    ]


def _shown(array: np.ndarray) -> str:
    return f"{'text' if array.dtype.kind == 'S' else array.dtype.name}{list(array.shape)}"
