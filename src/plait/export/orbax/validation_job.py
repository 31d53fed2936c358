"""Runs batches through both sides of a comparison, and measures the times."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError
from ...ground.words import describe_type
from .validation_report import ValidationSingleJobResult


class ValidationJob:
    """Runs the same batches through a function and its replacement.

    Args:
        baseline_inference_fn: the original; it takes one batch.
        candidate_inference_fn: the replacement.
        batch_input: the batches.
        with_xprof: whether to record a profile of each side; its folder is then in ``xprof_url``.

    Raises:
        ArgumentError: there are no batches.

    Example:
        >>> job = plait.export.validate.ValidationJob(jnp.sin, jax.jit(jnp.sin), [jnp.zeros(2), jnp.ones(2)])
        >>> report = plait.export.validate.ValidationReport(job.calc_baseline_result(), job.calc_candidate_result())
        >>> report.status
        <Status.Pass: 1>
    """

    def __init__(
        self,
        baseline_inference_fn: Callable[[Any], Any],
        candidate_inference_fn: Callable[[Any], Any],
        batch_input: Sequence[Any],
        with_xprof: bool = False,
    ) -> None:
        self._baseline, self._candidate = baseline_inference_fn, candidate_inference_fn
        self._batches = checked_batches(batch_input, "batch_input", "ValidationJob(baseline, candidate, [batch])")
        self._with_xprof = with_xprof

    def calc_baseline_result(self) -> ValidationSingleJobResult:
        """Outputs and times of the original."""
        return self._run(self._baseline)

    def calc_candidate_result(self) -> ValidationSingleJobResult:
        """Outputs and times of the replacement."""
        return self._run(self._candidate)

    def _run(self, function: Callable[[Any], Any]) -> ValidationSingleJobResult:
        def outputs_of(batch: Any) -> Any:
            return jax.tree_util.tree_map(np.asarray, function(batch))

        outputs_of(self._batches[0])  # not timed: it compiles
        latencies, outputs = [], []
        with _profile(self._with_xprof) as folder:
            for batch in self._batches:
                start = time.perf_counter()
                outputs.append(outputs_of(batch))
                latencies.append(time.perf_counter() - start)
        return ValidationSingleJobResult(latencies, outputs, folder)


def checked_batches(batches: Any, at: str, do: str) -> list[Any]:
    """The batches as a list.

    Raises:
        ArgumentError: it is not a sequence, or empty.
    """
    if not isinstance(batches, (list, tuple)) or not batches:
        found = repr(batches) if isinstance(batches, (list, tuple)) else describe_type(batches)
        expected = "a list of at least one batch"
        raise ArgumentError("a validation needs inputs", at=at, found=found, expected=expected, do=do)
    return list(batches)


@contextlib.contextmanager
def _profile(wanted: bool) -> Iterator[str]:
    """The folder for a profile of the body, or ``"N/A"``."""
    if not wanted:
        yield "N/A"
        return
    folder = tempfile.mkdtemp(prefix="plait-xprof-")
    with jax.profiler.trace(folder):
        yield folder
