"""Validation in a fresh process."""

import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from plait.errors import ArgumentError, ExportError
from plait.export import InputSpec, prove, save_stablehlo, validate_export
from plait.export.program.program import program_of
from plait.export.proof import apart, report
from plait.export.proof.compare import tolerance_of
from plait.export.proof.runners.exchange import milliseconds_of, read, run_all, write

pytestmark = pytest.mark.apart


@pytest.fixture(scope="module")
def doubling(tmp_path_factory):
    path = tmp_path_factory.mktemp("validate") / "model"
    weights = {"factor": jnp.float32(2)}
    save_stablehlo(lambda p, x: p["factor"] * x, weights, path, input_spec=InputSpec(("batch",)))
    return path


def outcome(monkeypatch, result, expected):
    """The report on a file that returned ``result``."""
    monkeypatch.setattr(report, "run_apart", lambda *_, **__: [({"y": np.asarray(result)}, np.zeros(5))])
    return validate_export("onnx", "model.onnx", np.zeros(1), np.asarray(expected), tolerance=1e-3)


@pytest.mark.parametrize(("names", "given"), [(["x"], "other"), (["x", "y"], None)])
def test_a_single_input_may_have_any_name(tmp_path, names, given):
    inputs = {given or name: np.ones(2) for name in names}
    write(tmp_path / "x_0.npz", inputs)
    run_all(tmp_path, lambda arrays: {"sum": sum(arrays[name] for name in names)}, names)
    assert read(tmp_path / "y_0.npz")["sum"].tolist() == [len(names)] * 2


@pytest.mark.slow
def test_the_report_tells_how_far_off_a_file_is(doubling):
    x = np.arange(4, dtype=np.float32)
    found = validate_export("stablehlo", doubling, x, 2 * x + np.float32([0, 0, 0, 1]), tolerance=1e-4)
    assert not found.passed
    assert (found.max_abs_difference, found.mean_abs_difference) == (1.0, 0.25)
    assert found.detail == "1 examples, 4 values, beyond 0.0001"


@pytest.mark.slow
def test_a_file_that_cannot_be_loaded_is_an_error_with_the_last_lines(tmp_path):
    with pytest.raises(ExportError, match=r"at +.*nowhere\n(.*\n)*.*manifest\.json"):
        validate_export("stablehlo", tmp_path / "nowhere", np.zeros(1), np.zeros(1))


def test_an_interpreter_that_is_not_there_is_an_error_with_the_reason(doubling):
    with pytest.raises(ExportError, match=r"(?s)at +/nowhere/python\n +found +.*No such file.*'/nowhere/python'"):
        validate_export("stablehlo", doubling, np.zeros(1), np.zeros(1), python="/nowhere/python")


@pytest.mark.parametrize(
    ("result", "expected", "passed"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], True),
        ([1.0, 1.0], [1.0, np.nan], False),
        ([1.0, np.inf], [1.0, -np.inf], False),
        ([1.0005], [1.0], True),
        ([1.002], [1.0], False),
        ([1, 2], [1, 3], False),
        ([True, False], [True, False], True),
        ([1 + 1j], [1 + 2j], False),
        ([], [], True),
    ],
)
def test_values_are_compared(monkeypatch, result, expected, passed):
    assert outcome(monkeypatch, result, expected).passed is passed


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [("float32", 6.2e-5), ("bfloat16", 0.125), ("float16", 0.0157), ("int32", 0), ("float64", 1.14e-13)],
)
def test_what_passes_follows_from_dtype_and_size(dtype, limit):
    """E37: relative to the largest finite value, and few roundings where there are few bits."""
    output = np.asarray([0.5, -2, np.inf] if limit else [1, -2]).astype(jnp.dtype(dtype))
    assert tolerance_of(output) == pytest.approx(limit, rel=0.02)


@pytest.mark.parametrize(
    ("result", "detail"),
    [(np.zeros((1, 2)), r"example 0: float64[1, 2] instead of float64[2]"), (np.zeros(2, np.float32), "float32[2]")],
)
def test_another_shape_or_dtype_does_not_pass(monkeypatch, result, detail):
    found = outcome(monkeypatch, result, np.zeros(2))
    assert not found.passed
    assert (found.max_abs_difference, found.mean_abs_difference) == (np.inf, np.inf)
    assert detail in found.detail


def test_a_bare_array_is_the_only_output_whatever_that_is_called(monkeypatch):
    one, two = np.ones(2), {"a": np.ones(2), "b": np.ones(2)}
    for result, expected, passed, detail in (
        ({"label": one}, one, True, "1 examples, 2 values, within 1e-05"),
        (two, one, False, "example 0: outputs a, b instead of y"),
        ({"label": one}, two, False, "example 0: outputs label instead of a, b"),
    ):
        monkeypatch.setattr(report, "run_apart", lambda *_, result=result, **__: [(result, np.zeros(5))])
        found = validate_export("onnx", "model.onnx", np.zeros(1), expected, tolerance=1e-5)
        assert (found.passed, found.detail) == (passed, detail)


def test_the_tolerance_of_small_values_is_that_of_one():
    assert tolerance_of(np.float32([1e-3])) == tolerance_of(np.float32([1.0])) == 256 * np.finfo(np.float32).eps
    eight_bits = np.asarray([-2.0]).astype(jnp.float8_e4m3fn)
    assert tolerance_of(eight_bits) == 2 * float(jnp.finfo(jnp.float8_e4m3fn).eps)


def test_text_goes_to_the_other_process_as_bytes(tmp_path):
    """TensorFlow has text as objects, which are no arrays of bytes."""
    write(tmp_path / "y.npz", {"y": np.array([b"one", b"three"], object)})
    assert read(tmp_path / "y.npz")["y"].tolist() == [b"one", b"three"]


def test_times_of_calls_are_milliseconds():
    times = milliseconds_of(lambda: time.sleep(0.02))
    assert len(times) == 5
    assert all(20 <= each < 20_000 for each in times)


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"found +'torch'"):
        validate_export("torch", "model", np.zeros(1), np.zeros(1))
    with pytest.raises(ArgumentError, match=r"found +1 outputs\n +expected +2 outputs"):
        validate_export("onnx", "model", [np.zeros(1), np.zeros(1)], [np.zeros(1)])


def test_blocked_packages_look_as_if_they_were_not_installed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy, importlib.util\n"
        "try:\n    import jax.numpy\nexcept ModuleNotFoundError as error:\n    print(error, '|', *sys.argv[1:])\n"
    )
    command = [sys.executable, "-I", str(apart.RUNNERS / "isolated.py"), "jax,plait", str(script), "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "jax is blocked in this process | a b"
    command[3] = "jax,runpy,sys"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == "imported before they could be blocked: runpy, sys"


@pytest.mark.slow
def test_the_reference_may_be_the_program(doubling):
    """Of a format without a bundle beside it: names, sizes and values of omitted state are those of the program."""
    program = program_of(({"factor": jnp.float32(2)}, lambda p, x: p["factor"] * x), ("batch",))
    (found,), _ = prove(doubling, inputs={"x": np.ones(3, np.float32)}, reference=program)
    assert found.passed
    (found,), _ = prove(doubling, inputs={"x": np.ones(3, np.float32)}, reference=lambda x: 3 * x)
    assert not found.passed
