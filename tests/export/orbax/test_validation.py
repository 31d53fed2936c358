"""Saved models beside their originals."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.errors import ArgumentError
from plait.export.orbax.validation import positional_inputs
from plait.export.orbax.validation_report import ValidationSingleJobResult
from plait.export.validate import (
    FloatingPointDiffReport,
    NonFloatingPointDiffReport,
    Status,
    ValidationManager,
    ValidationReport,
    ValidationReportOption,
)

NUMBERS = st.floats(-10, 10, width=32)


def report(baseline, candidate, **option):
    sides = [ValidationSingleJobResult([1.0], [outputs]) for outputs in (baseline, candidate)]
    return ValidationReport(*sides, ValidationReportOption(**option))


@given(
    b=st.lists(NUMBERS, min_size=1, max_size=5),
    off=st.lists(st.floats(-1, 1), min_size=5, max_size=5),
    atol=st.sampled_from([0.0, 0.1, 0.5]),
    rtol=st.sampled_from([0.0, 0.1]),
)
def test_e30_floating_outputs_are_compared_by_the_formula(b, off, atol, rtol):
    """E30: ``|c - b| <= atol + rtol*|b|``, all values together."""
    b = np.asarray(b, np.float64)
    c = b + np.asarray(off[: len(b)])
    found = report({"x": b[:1], "y": b[1:]}, {"x": c[:1], "y": c[1:]}, floating_atol=atol, floating_rtol=rtol)
    floating = found.outputs["FloatingPointDiffReport"]
    assert isinstance(floating, FloatingPointDiffReport)
    assert floating.total == len(b)
    assert floating.max_diff == np.max(np.abs(c - b))
    assert floating.all_close == bool(np.all(np.abs(c - b) <= atol + rtol * np.abs(b)))
    assert found.status is (Status.Pass if floating.all_close else Status.Fail)
    assert (floating.all_close_absolute_tolerance, floating.all_close_relative_tolerance) == (atol, rtol)


@pytest.mark.parametrize(
    ("b", "c", "status"),
    [
        ([np.inf, -np.inf], [np.inf, -np.inf], Status.Pass),
        ([np.inf], [-np.inf], Status.Fail),
        ([1.0], [np.nan], Status.Fail),
        ([np.nan], [1.0], Status.Fail),
        ([1.0, np.nan], [1.0, np.nan], Status.Pass),
        ([np.inf], [1.0], Status.Fail),
        ([1.0], [np.inf], Status.Fail),
        ([1 + 1j], [1 + 2j], Status.Fail),
        ([0.0], [0.0], Status.Pass),
        ([], [], Status.Pass),
    ],
)
def test_e30_unusual_values(b, c, status):
    """E30."""
    assert report([np.asarray(b)], [np.asarray(c)]).status is status


@pytest.mark.parametrize(("limit", "status"), [(0.3, Status.Fail), (0.34, Status.Pass)])
def test_e30_one_differing_element_makes_a_tensor_a_mismatch(limit, status):
    """E30: section 9, last row: any element counts, not all."""
    b = {"a": np.array([1, 2, 3]), "b": np.array([True]), "c": np.array([b"x", b"y"])}
    c = {**b, "a": np.array([1, 2, 4])}
    found = report(b, c, max_non_floating_mismatch_ratio=limit)
    other = found.outputs["NonFloatingPointDiffReport"]
    assert other == NonFloatingPointDiffReport(3, 1, 1 / 3, limit)
    assert found.status is status


def test_e30_sequences_and_single_arrays_are_named_like_tensorflows():
    """E30."""
    assert report((np.ones(1), np.ones(1)), {"output_0": np.ones(1), "output_1": np.ones(1)}).status is Status.Pass
    assert report(np.ones(1), {"output_0": np.ones(1)}).status is Status.Pass


def test_e30_leaves_of_nested_outputs_are_compared():
    """E30; lists of numbers, dictionaries in dictionaries."""
    nested = {"y": [0.1, 0.2], "head": {"logits": np.ones(2), "classes": (np.arange(2),)}}
    found = report(nested, nested)
    assert found.status is Status.Pass
    assert found.outputs["FloatingPointDiffReport"].total == 4
    assert found.outputs["NonFloatingPointDiffReport"].total_flattened_tensors == 1
    assert report({"y": [0.1, 0.2]}, {"y": [0.1, 0.3]}).status is Status.Fail


@pytest.mark.parametrize(
    ("baseline", "candidate", "message"),
    [
        (
            {"a": {"b": np.ones(1)}},
            {"a": np.ones(1)},
            r"in structure\n +found +.*'a'.*\n +expected +.*'a\.b'",
        ),
        ({"a": np.ones(1)}, {"b": np.ones(1)}, r"in structure\n +found +.*'b'.*\n +expected +.*'a'"),
        ({"a": np.ones(1)}, {"a": np.ones(2)}, r"in structure\n +found +.*\(2,\).*\n +expected +.*\(1,\)"),
    ],
)
def test_e30_outputs_that_cannot_be_compared_are_refused(baseline, candidate, message):
    """E30, and its row of section 8."""
    with pytest.raises(ValueError, match=message):
        report(baseline, candidate)


def test_e30_a_difference_from_zero_is_infinite_relative_to_it():
    """E30."""
    found = report({"y": np.float32([0.0, 2.0])}, {"y": np.float32([1.0, 2.0])})
    floating = found.outputs["FloatingPointDiffReport"]
    assert isinstance(floating, FloatingPointDiffReport)
    assert (floating.max_diff, floating.max_rel_diff) == (1.0, np.inf)


def test_e30_options_have_the_defaults_of_the_contract():
    """E30."""
    option = ValidationReportOption()
    assert (option.floating_atol, option.floating_rtol, option.max_non_floating_mismatch_ratio) == (1e-7, 1e-7, 0.01)
    assert (option.output_report_path, option.print_debug_info) == (None, False)
    for name in ("floating_atol", "floating_rtol"):
        with pytest.raises(OverflowError, match=f"^{name}=-1e-09 is negative; a tolerance is 0 or more$"):
            ValidationReportOption(**{name: -1e-9})


def test_e30_a_report_is_json():
    """E30."""
    sides = [ValidationSingleJobResult([0.001, 0.003], [[np.ones(2)]] * 2, metadata={"device": d}) for d in ("a", "b")]
    found = ValidationReport(*sides)
    as_dict = json.loads(found.to_json(indent=2))
    assert as_dict == found.to_dict()
    assert as_dict["status"] == "Pass"
    assert as_dict["latency"]["baseline"] == {"num_batches": 2, "avg_in_ms": 2.0, "p90_in_ms": 2.8, "p99_in_ms": 2.98}
    assert as_dict["metadata"] == {"baseline": {"device": "a"}, "candidate": {"device": "b"}}
    assert as_dict["xprof_url"] == {"baseline": "N/A", "candidate": "N/A"}
    assert as_dict["outputs"]["FloatingPointDiffReport"]["total"] == 4


# What follows runs saved models.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Module, configs and the loaded model."""
    tf = pytest.importorskip("tensorflow")
    from plait.export import ExportManager, JaxModule, ServingConfig

    module = JaxModule(
        {"w": jnp.float32(2)},
        {"scale": lambda p, x: p["w"] * x, "sum": lambda p, x: (x["a"] + x["b"], jnp.sign(x["a"]).astype(jnp.int32))},
        input_polymorphic_shape={"scale": "b, 2", "sum": "b"},
    )
    configs = [
        ServingConfig(
            ["scale", "text"],
            [tf.TensorSpec((None, 2), tf.float32, name="x"), tf.TensorSpec((), tf.float32, name="shift")],
            tf_preprocessor=lambda x, shift: x + shift,
            tf_postprocessor=lambda y: {"y": y, "text": tf.strings.as_string(y)},
            method_key="scale",
        ),
        ServingConfig("sum", [{name: tf.TensorSpec((None,), name=name) for name in "ab"}], method_key="sum"),
    ]
    path = tmp_path_factory.mktemp("validation") / "model"
    ExportManager(module, configs).save(path)
    return module, configs, tf.saved_model.load(str(path))


SHIFTED = [{"x": np.ones((size, 2), np.float32), "shift": np.float32(1)} for size in (1, 3)]
INPUTS = {
    "scale": SHIFTED,
    "text": [[[[1, 1], [2, 2]], 2]],
    "sum": [{"a": np.float32([-1, 2]), "b": np.float32([1, 1])}] * 3,
}


@pytest.mark.oracle
def test_e30_a_saved_model_passes_in_every_signature(saved, tmp_path, capsys):
    """E30: mappings and sequences as batches, several methods, a report in a file."""
    module, configs, loaded = saved
    option = ValidationReportOption(output_report_path=tmp_path / "report.json", print_debug_info=True)
    reports = ValidationManager(module, configs, INPUTS).validate(loaded, report_option=option)
    assert {key: found.status for key, found in reports.items()} == dict.fromkeys(INPUTS, Status.Pass)
    assert {key: found.latency["candidate"].num_batches for key, found in reports.items()} == {
        "scale": 2,
        "text": 1,
        "sum": 3,
    }
    assert reports["scale"].outputs["FloatingPointDiffReport"].total == 8
    assert reports["scale"].outputs["NonFloatingPointDiffReport"].total_flattened_tensors == 2
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == {key: found.to_dict() for key, found in reports.items()}
    assert '"status": "Pass"' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.oracle
def test_e30_a_model_with_other_weights_fails(saved):
    """E30: JAX functions instead of the module, and one list of inputs for all signatures."""
    module, configs, loaded = saved
    other = {"scale": lambda x: 3 * x, "sum": module.jax_methods["sum"]}
    reports = ValidationManager(other, configs[:1], SHIFTED).validate(loaded, with_xprof=True)
    assert {found.status for found in reports.values()} == {Status.Fail}
    assert reports["scale"].outputs["FloatingPointDiffReport"].max_diff == 2.0
    assert reports["scale"].outputs["NonFloatingPointDiffReport"].mismatches == 2


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "signature 'scale'"),
        ({"scale": SHIFTED, "text": SHIFTED}, "signature 'sum'"),
        ({**INPUTS, "other": []}, "'other'"),
        (np.ones(3), "ndarray"),
    ],
)
def test_e30_wrong_inputs_are_named(saved, inputs, message):
    """E30."""
    with pytest.raises(ValueError, match=message):
        ValidationManager(*saved[:2], inputs)


@pytest.mark.oracle
def test_e30_a_signature_that_the_model_lacks_is_named(saved):
    """E30."""
    module, configs, _ = saved
    with pytest.raises(ValueError, match=r"at +signature 'sum'"):
        ValidationManager(module, configs[1:], INPUTS["sum"]).validate({"other": None})
    with pytest.raises(TypeError, match="JaxModule"):
        ValidationManager(3, configs, INPUTS)


def test_e30_a_batch_without_a_signature_is_one_input():
    """E30."""
    batch = {"a": 1}
    assert positional_inputs(None, batch) == [batch]
    assert positional_inputs(None, (1, 2)) == (1, 2)
    assert positional_inputs(None, 3) == [3]


def test_floating_point_outputs_are_not_compared_with_others():
    with pytest.raises(ValueError, match="floating-point output has a counterpart that is none"):
        report([1.0, 2.0], [1.0, 2])
    assert report([np.ones(1, np.float32)], [jnp.ones(1, jnp.bfloat16)]).status is Status.Pass


X = np.ones(2, np.float32)
UNLIKE = {
    "of other names": ([{"a": X}], [{"b": X}]),
    "of another number": ([{"a": X}], [{"a": X, "b": X}]),
    "of another shape": ([{"a": X}], [{"a": X[:1]}]),
    "of another kind": ([1.0, 2.0], [1.0, 2]),
    "of other batches": ([{"a": X}], [{"a": X}, {"a": X}]),
}


@pytest.mark.parametrize("outputs", UNLIKE.values(), ids=UNLIKE)
def test_e30_outputs_that_cannot_be_compared(outputs):
    """E30: the report and ``check_output`` refuse the same."""
    sides = [ValidationSingleJobResult([1.0] * len(each), each) for each in outputs]
    for function in (ValidationReport, ValidationManager.check_output):
        with pytest.raises(ArgumentError, match=r"found +(.|\n)+expected +(.|\n)+do +"):
            function(*sides)


def test_e30_outputs_that_can_be_compared():
    """E30: sequences have the names of a SavedModel, and numbers may differ."""
    sides = [ValidationSingleJobResult([1.0], [each]) for each in ((X, 2.0), {"output_0": X + 1, "output_1": 3.0})]
    ValidationManager.check_output(*sides)
    ValidationManager.check_output(*sides[::-1])


def test_e30_batches_are_a_list():
    """E30."""
    ValidationManager.check_input([X])
    ValidationManager.check_input(X, batch_mode=False)
    for wrong in (X, {"a": X}, [], 3):
        with pytest.raises(ArgumentError, match=r"at +inputs\n"):
            ValidationManager.check_input(wrong)
