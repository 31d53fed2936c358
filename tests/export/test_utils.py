"""Signatures: defaults, batching, and SavedModels as functions."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.export import utils

tf = pytest.importorskip("tensorflow")
from plait.export import (  # noqa: E402  (needs TensorFlow)
    ExportManager,
    JaxModule,
    ServingConfig,
    TensorSpecWithDefault,
    remove_signature_defaults,
)

pytestmark = pytest.mark.oracle

X = tf.TensorSpec((None, 2), tf.float32, name="x")
SCALE = tf.TensorSpec((None,), tf.float32, name="scale")


def test_e22_a_default_becomes_a_tensor_of_the_specs_dtype():
    """E22."""
    spec = TensorSpecWithDefault(SCALE, [1, 2])
    assert spec.default_val.dtype == tf.float32
    assert spec.default_val.numpy().tolist() == [1, 2]
    assert spec.is_primary is False
    assert remove_signature_defaults([{"a": spec, "b": X}]) == [{"a": SCALE, "b": X}]


@pytest.mark.parametrize("value", [None, [[1.0]], "text", tf.constant([1], tf.int32)])
def test_e22_a_default_that_does_not_fit_is_named_with_its_spec(value):
    """E22, and its row of section 8."""
    with pytest.raises(ValueError, match=r"at +TensorSpec\(shape=\(None,\).*\n.*default_val="):
        TensorSpecWithDefault(SCALE, value)


def test_e22_with_default_args_fills_inputs_that_are_left_out():
    """E22: one tensor, and a whole pytree of them."""
    pair = {"a": TensorSpecWithDefault(SCALE, [5.0]), "b": TensorSpecWithDefault(SCALE, [7.0])}
    signature = [X, TensorSpecWithDefault(SCALE, [3.0]), pair]
    function = utils.with_default_args(lambda x, scale, both: x * scale + both["a"] + both["b"], signature)
    np.testing.assert_array_equal(function(tf.ones((1, 2))), [[15, 15]])
    np.testing.assert_array_equal(function(tf.ones((1, 2)), tf.constant([4.0])), [[16, 16]])
    new = {"a": tf.constant([0.0]), "b": tf.constant([0.0])}
    np.testing.assert_array_equal(function(tf.ones((1, 2)), inputs_2=new), [[3, 3]])


def test_e22_defaults_for_a_part_of_an_input_are_refused():
    """E22, and its row of section 8."""
    with pytest.raises(ValueError, match=r"at +input 1\n.*1 of 2 tensors"):
        utils.with_default_args(print, [X, {"a": SCALE, "b": TensorSpecWithDefault(SCALE, [1.0])}])
    with pytest.raises(ValueError, match=r"at +input 1\n"):
        utils.with_default_args(print, [TensorSpecWithDefault(SCALE, [1.0]), X])


@pytest.mark.slow
@given(batch=st.sampled_from([1, 3]), shared=st.booleans(), primary=st.booleans())
def test_e22_auto_batching_repeats_what_is_not_primary(batch, shared, primary):
    """E22: every input comes out with the primary batch size, itself where it has it, repeated where it has 1."""
    other = tf.TensorSpec((None, 3), tf.int32)
    signature = [{"x": X}, TensorSpecWithDefault(other, [[1, 2, 3]], is_primary=primary and not shared)]
    small = np.arange(3 * (1 if shared else batch), dtype=np.int32).reshape(-1, 3)
    large = np.ones((batch, 2), np.float32)
    found = tf.function(utils.make_auto_batching_function(signature))({"x": large}, small)
    np.testing.assert_array_equal(found[0]["x"], large)
    np.testing.assert_array_equal(found[1], np.broadcast_to(small, (batch, 3)))


def test_e22_auto_batching_refuses_what_it_cannot_batch():
    """E22, and the row of section 8 on primary inputs."""
    default = TensorSpecWithDefault(SCALE, [1.0])
    with pytest.raises(ValueError, match=r"no input of the signature is primary(.*\n)*.*scale"):
        utils.make_auto_batching_function([default])
    with pytest.raises(ValueError, match=r"no batch axis\n +found +TensorSpec\(shape=\(\)"):
        utils.make_auto_batching_function([tf.TensorSpec((), tf.float32)])
    batched = utils.make_auto_batching_function([X, default])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="an input has neither the batch size 1 nor that of the primary inputs"
    ):
        batched(np.ones((3, 2), np.float32), np.ones(2, np.float32))
    both = utils.make_auto_batching_function([X, TensorSpecWithDefault(SCALE, [1.0], is_primary=True)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="primary inputs differ in batch size"):
        both(np.ones((3, 2), np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize(
    "given", [np.ones((3, 2), np.float32), [[1, 1]] * 3, tf.ones((3, 2))], ids=["array", "list", "tensor"]
)
def test_e22_auto_batching_takes_what_becomes_a_tensor(given):
    """E22: the result is a tuple, also of one input; an input that is left out has its default."""
    (alone,) = utils.make_auto_batching_function([X])(given)
    x, scale = utils.make_auto_batching_function([X, TensorSpecWithDefault(SCALE, [4.0])])(given)
    for each in (alone, x):
        assert each.dtype == tf.float32
        np.testing.assert_array_equal(each, np.ones((3, 2)))
    np.testing.assert_array_equal(scale, [4, 4, 4])


@pytest.mark.slow
def test_e22_a_saved_model_keeps_its_defaults(tmp_path):
    """E18, E22: as TensorFlow Serving sees them, and for whoever calls the loaded model."""
    signature = [X, TensorSpecWithDefault(SCALE, [3.0])]
    batched = utils.make_auto_batching_function(signature)

    def scaled(x, scale):
        x, scale = batched(x, scale)
        return x * scale[:, None]

    module = JaxModule(jnp.float32(2), lambda p, x: p * x, input_polymorphic_shape="b, 2")
    manager = ExportManager(module, [ServingConfig("s", signature, scaled)])
    manager.save(tmp_path / "model")
    np.testing.assert_array_equal(manager.serving_signatures["s"](tf.ones((2, 2))), np.full((2, 2), 6))
    served = utils.CallableSignatures.from_saved_model(tmp_path / "model", ["serve"]).signatures
    assert set(served) == {"s"}
    np.testing.assert_array_equal(served["s"](x=np.ones((2, 2)))["output_0"], np.full((2, 2), 6))
    np.testing.assert_array_equal(served["s"](x=np.ones((2, 2)), scale=[1, 2])["output_0"], [[2, 2], [4, 4]])
    tensors = {"x": tf.ones((2, 2)), "scale": tf.constant([1.0, 2.0])}
    np.testing.assert_array_equal(served["s"](**tensors)["output_0"], [[2, 2], [4, 4]])
    with pytest.raises(ValueError, match=r"found +'y'\n +expected +some of 'scale', 'x'"):
        served["s"](y=1)
    with pytest.raises(ValueError, match=r"missing\n +found +'x'"):
        served["s"](scale=[1, 2])
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded(tf.ones((2, 2))), np.full((2, 2), 6))


def test_e22_a_model_that_cannot_be_loaded_leaves_tensorflows_logging_as_it_was(tmp_path):
    logging = tf.compat.v1.logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    try:
        with pytest.raises(OSError, match="nowhere"):
            utils.CallableSignatures.from_saved_model(tmp_path / "nowhere")
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity(before)
