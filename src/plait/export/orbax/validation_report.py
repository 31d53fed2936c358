"""The results of comparing a saved model with its original, as data and as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..program.checks import check_equal
from ..proof.compare import agree, difference, wide


class Status(enum.Enum):
    """Whether a saved model agrees with its original."""

    Pass = 1
    Fail = 2


@dataclasses.dataclass(frozen=True)
class ValidationReportOption:
    """Tolerances and outputs of a validation.

    Args:
        floating_atol: absolute tolerance of floating-point values.
        floating_rtol: relative tolerance, with respect to the original.
        max_non_floating_mismatch_ratio: fraction of the other tensors that may differ.
        output_report_path: a file for the reports, as JSON by signature name.
        print_debug_info: whether to print the reports.

    Raises:
        OverflowError: a tolerance is negative.

    Example:
        >>> plait.export.validate.ValidationReportOption(floating_atol=1e-5).floating_rtol
        1e-07
    """

    floating_atol: float = 1e-7
    floating_rtol: float = 1e-7
    max_non_floating_mismatch_ratio: float = 0.01
    output_report_path: str | os.PathLike[str] | None = None
    print_debug_info: bool = False

    def __post_init__(self) -> None:
        for name in ("floating_atol", "floating_rtol"):
            if getattr(self, name) < 0:
                raise OverflowError(f"{name}={getattr(self, name)} is negative; a tolerance is 0 or more")


@dataclasses.dataclass
class ValidationSingleJobResult:
    """One side of a comparison.

    Args:
        latencies: the time of each batch in seconds.
        outputs: the outputs of each batch.
        xprof_url: the folder of a profile, or ``"N/A"``.
        metadata: further data on this side.

    Example:
        >>> result = plait.export.validate.ValidationSingleJobResult([0.5], [(1.0, 2.0)])
        >>> result.maybe_convert_result_to_dict()
        >>> result.outputs
        [{'output_0': 1.0, 'output_1': 2.0}]
    """

    latencies: Sequence[float]
    outputs: Sequence[Any]
    xprof_url: str = "N/A"
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def maybe_convert_result_to_dict(self) -> None:
        """Name outputs that are not mappings as a SavedModel does: ``output_0``, ``output_1``, …"""
        self.outputs = [named_outputs(outputs) for outputs in self.outputs]


def named_outputs(outputs: Any) -> Any:
    """A sequence, or an array, as a dictionary with TensorFlow's names; anything else unchanged."""
    if isinstance(outputs, (list, tuple)):
        return {f"output_{index}": value for index, value in enumerate(outputs)}
    return {"output_0": outputs} if hasattr(outputs, "dtype") else outputs


@dataclasses.dataclass(frozen=True)
class FloatingPointDiffReport:
    """Differences of all floating-point values together."""

    all_close: bool
    max_diff: float
    all_close_absolute_tolerance: float
    max_rel_diff: float
    all_close_relative_tolerance: float
    total: int


@dataclasses.dataclass(frozen=True)
class NonFloatingPointDiffReport:
    """The number of other tensors that differ in any element."""

    total_flattened_tensors: int
    mismatches: int
    mismatch_ratio: float
    max_non_floating_mismatch_ratio: float


@dataclasses.dataclass(frozen=True)
class LatencyStat:
    """The latency of one batch in milliseconds."""

    num_batches: int
    avg_in_ms: float
    p90_in_ms: float
    p99_in_ms: float


class ValidationReport:
    """The comparison of two results.

    Args:
        baseline: results of the original.
        candidate: results of the saved model.
        option: the tolerances.

    Raises:
        ArgumentError: outputs differ in structure or shape, or floating-point values are compared with others.
    """

    def __init__(
        self,
        baseline: ValidationSingleJobResult,
        candidate: ValidationSingleJobResult,
        option: ValidationReportOption | None = None,
    ) -> None:
        option = option or ValidationReportOption()
        pairs = compared(baseline, candidate)
        is_floating = [_is_floating(b) for b, _ in pairs]
        floating = _floating([pair for pair, yes in zip(pairs, is_floating, strict=True) if yes], option)
        other = _other([pair for pair, yes in zip(pairs, is_floating, strict=True) if not yes], option)
        within = other.mismatch_ratio <= option.max_non_floating_mismatch_ratio
        sides = {"baseline": baseline, "candidate": candidate}
        self.status = Status.Pass if floating.all_close and within else Status.Fail
        self.outputs = {"FloatingPointDiffReport": floating, "NonFloatingPointDiffReport": other}
        self.latency = {side: _latency(result.latencies) for side, result in sides.items()}
        self.xprof_url = {side: result.xprof_url for side, result in sides.items()}
        self.metadata = {side: dict(result.metadata) for side, result in sides.items()}

    def to_dict(self) -> dict[str, Any]:
        """The report as nested dictionaries of numbers and strings."""
        return {
            "outputs": {name: dataclasses.asdict(report) for name, report in self.outputs.items()},
            "latency": {side: dataclasses.asdict(stat) for side, stat in self.latency.items()},
            "xprof_url": dict(self.xprof_url),
            "metadata": dict(self.metadata),
            "status": self.status.name,
        }

    def to_json(self, indent: int | str | None = None) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __repr__(self) -> str:
        return f"ValidationReport({self.to_dict()!r})"


def compared(
    baseline: ValidationSingleJobResult, candidate: ValidationSingleJobResult
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tensors of both sides, of all batches.

    Raises:
        ArgumentError: outputs differ in number, structure or shape, or floating-point values are compared with others.
    """
    pairs = []
    found, expected = (f"{len(side.outputs)} batches" for side in (candidate, baseline))
    message = "the candidate has outputs of another number of batches"
    check_equal(message, found, expected, "run both on the same batches")
    for ours, theirs in zip(baseline.outputs, candidate.outputs, strict=True):
        b, c = _flat(ours), _flat(theirs)
        shapes = [{name: array.shape for name, array in sorted(side.items())} for side in (b, c)]
        message = "the outputs of the candidate differ from the baseline's in structure"
        check_equal(message, shapes[1], shapes[0], "give them the same structure in tf_postprocessor")
        kinds = [{name: "floating" if _is_floating(side[name]) else "not floating" for name in b} for side in (b, c)]
        message = "a floating-point output has a counterpart that is none"
        check_equal(message, kinds[1], kinds[0], "cast one of the two in tf_postprocessor")
        pairs += [(b[name], c[name]) for name in sorted(b)]
    return pairs


def _is_floating(array: np.ndarray) -> bool:
    return bool(jax.numpy.issubdtype(array.dtype, jax.numpy.inexact))


def _flat(outputs: Any) -> dict[str, np.ndarray]:
    """The leaves of one batch's outputs, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(named_outputs(outputs))
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def _floating(pairs: list[tuple[np.ndarray, np.ndarray]], option: ValidationReportOption) -> FloatingPointDiffReport:
    b = np.abs(np.concatenate([np.zeros(0), *(wide(pair[0]).ravel() for pair in pairs)]))
    differences = np.concatenate([np.zeros(0), *(difference(c, b) for b, c in pairs)])
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(differences == 0, 0.0, np.nan_to_num(differences / b, nan=np.inf, posinf=np.inf))
    return FloatingPointDiffReport(
        total=b.size,
        max_diff=float(differences.max(initial=0.0)),
        max_rel_diff=float(relative.max(initial=0.0)),
        all_close=bool(agree(differences, option.floating_atol + option.floating_rtol * b).all()),
        all_close_absolute_tolerance=option.floating_atol,
        all_close_relative_tolerance=option.floating_rtol,
    )


def _other(pairs: list[tuple[np.ndarray, np.ndarray]], option: ValidationReportOption) -> NonFloatingPointDiffReport:
    mismatches = sum(not np.array_equal(b, c) for b, c in pairs)
    return NonFloatingPointDiffReport(
        total_flattened_tensors=len(pairs),
        mismatches=mismatches,
        mismatch_ratio=mismatches / len(pairs) if pairs else 0.0,
        max_non_floating_mismatch_ratio=option.max_non_floating_mismatch_ratio,
    )


def _latency(seconds: Sequence[float]) -> LatencyStat:
    times = 1000 * np.asarray(seconds, np.float64)
    p90, p99 = np.percentile(times, [90, 99])
    return LatencyStat(len(times), float(times.mean()), float(p90), float(p99))
