"""One side of a comparison: outputs, times, profile; beside ``orbax.export``."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.export.validate import Status, ValidationJob, ValidationReport, ValidationSingleJobResult


def test_e30_a_job_runs_every_batch_once_and_the_first_twice():
    """E30: one call that is not timed precedes the others, on each side."""
    calls = []

    def slow(x):
        calls.append(x)
        time.sleep(0.02)
        return {"y": jnp.asarray([x])}

    job = ValidationJob(slow, lambda x: {"y": np.float32([x])}, [1.0, 2.0])
    found = job.calc_baseline_result()
    assert calls == [1.0, 1.0, 2.0]
    assert [isinstance(outputs["y"], np.ndarray) for outputs in found.outputs] == [True, True]
    assert all(0.02 <= seconds < 2 for seconds in found.latencies)
    assert (found.xprof_url, found.metadata) == ("N/A", {})
    report = ValidationReport(found, job.calc_candidate_result())
    assert report.status is Status.Pass
    assert report.latency["baseline"].num_batches == 2
    assert 20 <= report.latency["baseline"].avg_in_ms < 2000


@pytest.mark.slow
def test_e30_a_profile_is_recorded_on_request():
    """E30: one folder for each side."""
    double = jax.jit(lambda x: 2 * x)
    job = ValidationJob(double, double, [jnp.ones(3)], with_xprof=True)
    folders = [Path(result.xprof_url) for result in (job.calc_baseline_result(), job.calc_candidate_result())]
    assert folders[0] != folders[1]
    for folder in folders:
        assert [file.stat().st_size > 0 for file in folder.rglob("*.xplane.pb")] == [True]


@pytest.mark.parametrize("batches", [[], None, np.ones(3)])
def test_e30_a_job_needs_batches(batches):
    """E30."""
    with pytest.raises(ValueError, match="batch_input"):
        ValidationJob(abs, abs, batches)


SHAPES = [
    ((np.ones(2), np.zeros(2)), ["output_0", "output_1"]),
    ([np.ones(2)], ["output_0"]),
    ({"b": np.ones(2), "a": np.ones(1)}, ["a", "b"]),
]


@pytest.mark.parametrize(("outputs", "names"), [*SHAPES, (np.ones(2), ["output_0"])])
def test_e30_outputs_are_named_as_tensorflow_names_them(outputs, names):
    """E30. (The reference cuts a single array into its elements.)"""
    result = ValidationSingleJobResult([1.0], [outputs])
    result.maybe_convert_result_to_dict()
    assert sorted(result.outputs[0]) == names


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_e30_jobs_are_those_of_orbax():
    """E30: calls, outputs, names, and seconds that reports turn into milliseconds."""
    theirs = pytest.importorskip("orbax.export.validate")
    from orbax.export.validate.validation_job import ValidationSingleJobResult as TheirResult

    seen = []
    for validate, result_of in ((theirs, TheirResult), (None, ValidationSingleJobResult)):
        calls = []

        def function(x, calls=calls):
            calls.append(float(x[0]))
            return (x + 1, x - 1)

        job = (validate.ValidationJob if validate else ValidationJob)(function, function, [np.zeros(2), np.ones(2)])
        found = job.calc_candidate_result()
        found.maybe_convert_result_to_dict()
        outputs = [{name: value.tolist() for name, value in each.items()} for each in found.outputs]
        fixed = [result_of([0.5, 1.5], [{"y": np.ones(2)}] * 2, "url", {"a": 1}) for _ in range(2)]
        report = (validate.ValidationReport if validate else ValidationReport)(*fixed)
        side = report.latency["baseline"]
        seen.append((calls, outputs, found.xprof_url, side.avg_in_ms, side.num_batches, report.status.name))
    assert seen[0] == seen[1]
    for outputs, _ in SHAPES:
        results = [kind([1.0], [outputs], "N/A", {}) for kind in (TheirResult, ValidationSingleJobResult)]
        for result in results:
            result.maybe_convert_result_to_dict()
        assert list(results[0].outputs[0]) == list(results[1].outputs[0])
