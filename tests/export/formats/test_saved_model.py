"""SavedModels, run by TensorFlow in a process without JAX."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ExportError
from plait.export import InputSpec, describe_exports, save_saved_model, validate_export
from tests.export.conv_net import IMAGES, inputs, log_probabilities, outputs, params

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved_model") / "digits"
    save_saved_model(log_probabilities, params(), path, input_spec=IMAGES)
    return path


def test_tensorflow_alone_gives_the_same_values_at_every_batch_size(model):
    report = validate_export("saved_model", model, inputs(), outputs(), tolerance=1e-5)
    assert report.passed, report


def test_weights_are_stored_once_beside_the_program(model):
    stored = sum(array.nbytes for array in params().values())
    data = sum(file.stat().st_size for file in (model / "variables").iterdir())
    program = (model / "saved_model.pb").stat().st_size
    assert stored <= data < 1.1 * stored
    assert program < data / 3
    assert all(array.tobytes()[:256] not in (model / "saved_model.pb").read_bytes() for array in params().values())


def test_variables_have_the_names_and_values_of_the_parameters(model):
    loaded = tf.saved_model.load(str(model))
    variables = {variable.name.removesuffix(":0"): variable for variable in loaded.weights}
    assert set(variables) == set(params())
    assert not any(variable.trainable for variable in variables.values())
    for name, array in params().items():
        np.testing.assert_array_equal(variables[name].numpy(), array)


def test_it_is_described_with_its_arrays(model):
    """A SavedModel has no names for sizes."""
    (found,) = describe_exports(model)
    assert (found.kind, found.path, found.versions) == ("saved_model", model, {"tensorflow": tf.__version__})
    assert found.size == sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    (x,), (y,) = found.signatures.pop("serving_default")
    assert found.signatures == {}
    assert (x.name, x.dtype, x.shape) == ("x", "float32", ("?", 8, 8, 1))
    assert (y.name, y.dtype, y.shape) == ("y", "float32", ("?", 10))
    stored = found.stored()
    assert [each.tensor for each in stored] == found.weights
    assert {(t.name, t.dtype, t.shape) for t in found.weights} == {
        (name, array.dtype.name, array.shape) for name, array in params().items()
    }
    for each in stored:
        np.testing.assert_array_equal(each.read(), params()[each.tensor.name])


def test_variables_of_tensorflow_1_have_the_names_that_they_are_stored_under(model, tmp_path):
    """Their checkpoint has no graph of objects."""
    path, arrays = tmp_path / "old", {"dense/kernel": [[1.0, 2.0]], "dense/bias": [3.0]}
    shutil.copytree(model, path, ignore=shutil.ignore_patterns("variables.*"))
    tf.raw_ops.SaveV2(
        prefix=str(path / "variables" / "variables"), tensor_names=[*arrays], shape_and_slices=[""] * 2,
        tensors=[tf.constant(array) for array in arrays.values()],
    )  # fmt: skip
    (found,) = describe_exports(path)
    assert {each.tensor.name: each.read().tolist() for each in found.stored()} == arrays


@pytest.mark.slow
def test_a_model_with_a_composite_and_a_free_batch_runs(tmp_path):
    """``top_k`` is what a SavedModel written for JAX's own StableHLO version failed on."""

    def largest(params, x):
        values, places = jax.lax.top_k(x * params["scale"], 2)
        return values + places.astype(x.dtype)

    weights, x = {"scale": jnp.array(2, jnp.bfloat16)}, jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4)
    path = tmp_path / "model"
    save_saved_model(largest, weights, path, input_spec=InputSpec(("rows", 4), jnp.bfloat16, "scores"))
    served = tf.saved_model.load(str(path)).signatures["serving_default"](scores=tf.constant(np.asarray(x)))
    np.testing.assert_array_equal(served["y"].numpy(), np.asarray(largest(weights, x)))


@pytest.mark.slow
def test_a_stack_has_names_that_tensorflow_can_save(tmp_path):
    """E10: a key of a stack has a colon. The exported model gives the values of the model."""

    class Net(plait.Module):
        def __init__(self, rngs):
            self.blocks = plait.Stack(lambda rngs: plait.Linear(3, 3, rngs=rngs), 2, rngs=rngs)

        def __call__(self, x):
            return self.blocks(x)

    net, x = Net(plait.Rngs(0)), np.ones((2, 3), np.float32)
    plait.export.save(net, tmp_path / "net", inputs=("batch", 3), formats=["saved_model"])
    loaded = tf.saved_model.load(str(tmp_path / "net" / "saved_model"))
    assert {each.name.removesuffix(":0") for each in loaded.weights} == {"blocks.0-2.kernel", "blocks.0-2.bias"}
    served = loaded.signatures["serving_default"](x=tf.constant(x))
    np.testing.assert_allclose(next(iter(served.values())).numpy(), net(x), rtol=1e-5, atol=1e-6)


def test_a_name_that_tensorflow_cannot_save_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ExportError, match=r"at +_hidden/kernel"):
        save_saved_model(lambda p, x: x, {"_hidden/kernel": jnp.ones(1)}, tmp_path / "m", input_spec=("batch",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["self", "größe", "_x"])
def test_names_of_inputs_that_tensorflow_has_not_got_are_refused(tmp_path, name):
    """E44: before anything is written."""
    with pytest.raises(ExportError, match=rf"(?s)does not accept this input name.*at +{name}"):
        save_saved_model(lambda params, x: x, {}, tmp_path / "m", input_spec=InputSpec((2,), name=name))
    assert list(tmp_path.iterdir()) == []


def test_two_variables_of_one_name_are_refused(tmp_path):
    """E33: names that TensorFlow's alphabet makes equal, too."""
    params = {"a~b": jnp.ones(1), "a_b": jnp.ones(1)}
    with pytest.raises(ExportError, match=r"same name in the file\n +at +a_b\n +found +'a_b', of a_b and of a~b"):
        save_saved_model(lambda p, x: p["a~b"] + p["a_b"] + x, params, tmp_path / "model", input_spec=(1,))
    assert list(tmp_path.iterdir()) == []
