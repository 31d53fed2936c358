"""ONNX files, run by ONNX Runtime in a process without JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ExportError
from plait.export import InputSpec, describe_exports, save_onnx, validate_export
from plait.export.formats.onnx import _functions_of_jax_kept, write
from plait.export.formats.options import WriteOptions
from plait.export.formats.whole_write import ExportPathError
from plait.export.program.program import program_of
from tests.export.conv_net import IMAGES, inputs, log_probabilities, outputs, params
from tests.lazily import Lazily

onnx = Lazily("onnx")
pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("_writer")]


@pytest.fixture(scope="module")
def _writer():
    pytest.importorskip("jax2onnx")


@pytest.fixture(scope="module")
def model(tmp_path_factory, _writer):
    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    save_onnx(log_probabilities, params(), path, input_spec=IMAGES)
    return path


def test_onnx_runtime_alone_gives_the_same_values_at_every_batch_size(model):
    report = validate_export("onnx", model, inputs(), outputs())
    assert report.passed, report


def test_each_weight_is_one_initializer_of_its_own_name(model):
    graph = onnx.load(model).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name, array in params().items():
        np.testing.assert_array_equal(stored[name], array)
    largest = sorted((array.size for array in stored.values()), reverse=True)
    assert largest[: len(params())] == sorted((array.size for array in params().values()), reverse=True)
    assert model.stat().st_size < 1.1 * sum(array.nbytes for array in params().values())


def test_one_file_with_one_input_and_a_free_batch(model):
    assert [file.name for file in model.parent.iterdir()] == [model.name]
    (x,), (y,) = onnx.load(model).graph.input, onnx.load(model).graph.output
    assert (x.name, y.name) == ("x", "y")
    assert [size.dim_param or size.dim_value for size in x.type.tensor_type.shape.dim] == ["batch", 8, 8, 1]
    assert y.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
def test_computing_in_16_bits_is_refused_where_it_is_done_and_casting_is_not(tmp_path, wrap):
    stored = {"w": jnp.asarray([[1.5, -0.5], [0.25, 3.0]], jnp.bfloat16)}

    def doubled(params, x):
        return x @ (2 * params["w"]).astype(jnp.float32)

    def cast(params, x):
        return x @ params["w"].astype(jnp.float32)

    with pytest.raises(ExportError, match=r"found +the operation mul of bfloat16"):
        save_onnx(wrap(doubled), stored, tmp_path / "doubled", input_spec=("batch", 2))
    assert list(tmp_path.iterdir()) == []
    save_onnx(wrap(cast), stored, tmp_path / "cast", input_spec=("batch", 2))
    x = np.asarray([[1.0, 2.0]], np.float32)
    assert validate_export("onnx", tmp_path / "cast", x, np.asarray(cast(stored, x))).passed


def test_only_what_is_returned_under_a_second_name_is_copied(tmp_path):
    """ONNX allows one name per value, whether it is an input or another output."""
    for name, function in {"itself": lambda p, x: x, "several": several}.items():
        save_onnx(function, {}, tmp_path / name, input_spec=("batch", 2))
    found = {name: onnx.load(tmp_path / name).graph.node for name in ("itself", "several")}
    nodes = {name: [(node.op_type, *node.input, *node.output) for node in graph] for name, graph in found.items()}
    assert nodes == {
        "itself": [("Identity", "x", "y")],
        "several": [("Tanh", "x", "a"), ("Identity", "a", "b"), ("Identity", "x", "c")],
    }


def several(params, x):
    y = jnp.tanh(x)
    return {"a": y, "b": y, "c": x}


def test_an_operation_that_cannot_be_converted_is_an_export_error(tmp_path):
    def unknown(params, x):
        return jax.lax.linalg.schur(x)[0]

    with pytest.raises(
        ExportError, match=r"jax2onnx cannot write the model as ONNX\n  found +schur in the function itself"
    ):
        save_onnx(unknown, {}, tmp_path / "m.onnx", input_spec=(3, 3))
    assert list(tmp_path.iterdir()) == []


def test_many_weights_go_to_a_file_beside_the_model(tmp_path, monkeypatch):
    """E45, with a lower limit; tests/export/test_large.py has the real one."""
    weights = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones((1, 3), jnp.bfloat16), "c": jnp.float32(2)}
    program = program_of((weights, lambda p, x: x @ p["a"] * p["b"].astype(jnp.float32) * p["c"]), ("batch", 2))
    path = tmp_path / "m.onnx"
    monkeypatch.setattr("plait.export.formats.onnx.MOST_BYTES", 7)
    write({"y": program}, path)
    assert {file.name for file in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    x = np.ones((4, 2), np.float32)
    assert validate_export("onnx", path, x, x @ np.arange(6.0, dtype=np.float32).reshape(2, 3) * 2).passed
    (described,) = describe_exports(path)
    assert described.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert {(t.name, t.dtype, t.shape) for t in described.weights} >= {("a", "float32", (2, 3)), ("c", "float32", ())}
    ((given, found),) = described.signatures.values()
    assert [(t.name, t.dtype, t.shape) for t in (*given, *found)] == [
        ("x", "float32", ("batch", 2)),
        ("y", "float32", ("batch", 3)),
    ]
    stored = onnx.load(path)
    opsets = {each.domain or "ai.onnx": each.version for each in stored.opset_import}
    assert described.versions == {
        **{f"opset {domain}": str(version) for domain, version in opsets.items()},
        "ir": str(stored.ir_version),
        stored.producer_name: stored.producer_version,
    }
    with pytest.raises(ExportPathError, match="overwrite=True"):
        write({"y": program}, path)
    (tmp_path / "m.onnx").unlink()
    with pytest.raises(ExportPathError, match=r"m\.onnx\.data"):
        write({"y": program}, path)
    write({"y": program}, path, WriteOptions(overwrite=True))
    onnx.checker.check_model(path)
    monkeypatch.undo()
    write({"y": program}, path, WriteOptions(overwrite=True))
    assert {file.name for file in tmp_path.iterdir()} == {"m.onnx"}


def test_a_parameter_may_not_have_the_name_of_the_input(tmp_path):
    spec = InputSpec(("batch",), name="kernel")
    with pytest.raises(ExportError, match=r"at +kernel"):
        save_onnx(lambda p, x: x, {"kernel": jnp.ones(2)}, tmp_path / "m.onnx", input_spec=spec)


def test_what_onnx_cannot_load_is_refused(tmp_path):
    """E44: jax2onnx writes a cast to complex numbers, which no operation of ONNX takes."""
    with pytest.raises(ExportError, match=r"(?s)cannot write the model as ONNX.*tensor\(complex64\)"):
        save_onnx(lambda p, x: jnp.fft.fft(x).real, {}, tmp_path / "m.onnx", input_spec=InputSpec(("batch", 4)))
    assert list(tmp_path.iterdir()) == []


class Counting(plait.Module):
    def __init__(self):
        self.count = plait.Cache(jnp.zeros(()))

    def __call__(self, x):
        self.count[...] = self.count[...] + 1
        return {"count_next": x + self.count[...]}


def test_an_output_may_not_have_the_name_of_the_next_state(tmp_path):
    """E33: which is ``NAME_next`` in ONNX."""
    program = program_of(Counting(), (2,), state=plait.Cache)
    with pytest.raises(ExportError, match=r"found +'count_next', of an output and of the new value of a state"):
        write({"y": program}, tmp_path / "m.onnx")


def test_an_export_leaves_the_functions_of_jax_as_they_were(tmp_path):
    """jax2onnx replaces them while it converts, and forgets one: it could not be pickled or found by name any more."""
    save_onnx(
        lambda params, x: jnp.tanh(x) * params["w"], {"w": jnp.ones((1, 3))}, tmp_path / "m.onnx", input_spec=("b", 3)
    )
    functions = {
        f"{module.__name__}.{name}": value for module in (jnp, jax.nn, jax.lax) for name, value in vars(module).items()
    }
    assert [name for name, value in functions.items() if "jax2onnx" in str(getattr(value, "__module__", ""))] == []


def test_what_the_converter_leaves_in_jax_is_put_back():
    """jax2onnx leaves its own ``jnp.cumsum`` in the process."""
    cumsum = jnp.cumsum
    with _functions_of_jax_kept():
        jnp.cumsum = None
    assert jnp.cumsum is cumsum
