"""JAX functions as TensorFlow operations: symbolic sizes, dtypes and gradients, live and loaded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from plait.export import ExportManager, JaxModule, ServingConfig  # noqa: E402  (needs TensorFlow)
from tests.sampling import slow_but  # noqa: E402

pytestmark = pytest.mark.oracle

KEY = JaxModule.DEFAULT_METHOD_KEY
WEIGHTS = {"w": jnp.array([[0.5], [-2.0]]), "steps": jnp.array(3, jnp.int32)}


def wave(p, x):
    y = jnp.sin(x @ p["w"]) * p["steps"].astype(x.dtype)
    return {"y": y, "n": jnp.argmax(x, 1), "top": jax.lax.top_k(x, 1)[0]}


def loss(outputs):
    return (outputs["y"] ** 2).sum() + 3 * outputs["top"].sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jit_compile", "loaded"), slow_but([(True, True)], [(True, True), (True, False), (False, True), (False, False)])
)
def test_e7_gradients_are_those_of_jax_live_and_loaded(tmp_path, jit_compile, loaded):
    """E7, E20: with respect to inputs and variables, at a free batch size, with integer inputs and outputs beside."""
    module = JaxModule(WEIGHTS, wave, True, "b, 2", jit_compile=jit_compile)
    call, variables = module.methods[KEY], list(module.tf_var_leaves)
    if loaded:
        signature = [tf.TensorSpec((None, 2), tf.float32, name="x")]
        ExportManager(module, [ServingConfig("s", signature)]).save(tmp_path / "model")
        model = tf.saved_model.load(str(tmp_path / "model"))
        served, variables = model.signatures["s"], list(model.computation_module.tf_var_leaves)
        call = lambda x: served(x=x)
    kernel = next(v for v in variables if v.name.startswith("w"))
    for size in (1, 3):
        x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
        tensor = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            y = call(tensor)
            value = tf.reduce_sum(y["y"] ** 2) + 3 * tf.reduce_sum(y["top"])
        found = tape.gradient(value, [kernel, tensor])
        of_w = jax.grad(lambda w, x: loss(wave({**WEIGHTS, "w": w}, x)))(WEIGHTS["w"], x)
        np.testing.assert_allclose(found[0], of_w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found[1], jax.grad(lambda x: loss(wave(WEIGHTS, x)))(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "function", "x"),
    [
        (jnp.float32(3), lambda p, x: jnp.argmax(p * x), tf.ones(3)),
        (jnp.int32(3), lambda p, x: (p * x).astype(jnp.float32), tf.constant([1, 2])),
    ],
    ids=["to integers", "of integers"],
)
def test_e7_what_cannot_have_a_gradient_is_saved_and_has_none(tmp_path, weight, function, x):
    """E7: with respect to any input or variable, also where a parameter is trainable."""
    module = JaxModule(weight, function, trainable=True)
    manager = ExportManager(module, [ServingConfig("s", [tf.TensorSpec(x.shape, x.dtype, name="x")])])
    manager.save(tmp_path / "model")
    for call in (module.methods[KEY], manager.load(tmp_path / "model")):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        np.testing.assert_array_equal(y, function(weight, x.numpy()))
        assert tape.gradient(y, [x, *module.variables]) == [None, None]


def test_e7_without_trainable_parameters_a_gradient_is_an_error_that_says_why():
    """E7."""
    module = JaxModule(WEIGHTS, wave, input_polymorphic_shape="b, 2")
    x = tf.ones((1, 2))
    with (
        tf.GradientTape() as tape,
        pytest.raises(
            LookupError, match="this method was converted with with_gradient=False: none of its parameters is trainable"
        ),
    ):
        tape.watch(x)
        tape.gradient(module.methods[KEY](x)["y"], x)


def test_e7_a_gradient_of_a_gradient_is_an_error_that_says_so():
    module = JaxModule(WEIGHTS, wave, True, "b, 2")
    x = tf.ones((1, 2))
    with (
        tf.GradientTape() as outer,
        pytest.raises(
            LookupError,
            match="second-order gradients of a converted method are not supported in TensorFlow, only in JAX",
        ),
    ):
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = module.methods[KEY](x)["y"]
        outer.gradient(tape.gradient(y, x), x)


def test_e5_the_gradient_is_the_functions_own_if_it_has_one():
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    module = JaxModule({"w": jnp.ones(2)}, lambda p, x: 5 * clipped(p["w"] * x), True)
    with tf.GradientTape() as tape:
        y = module.methods[KEY](tf.ones(2))
    np.testing.assert_array_equal(tape.gradient(y, module.trainable_variables[0]), [1.0, 1.0])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (None, r"neither fixed nor symbolic(.*\n)*.*input_polymorphic_shape"),
        ("b", r"input_polymorphic_shape does not fit(.*\n)*.*'b'"),
        ("b, _, c", "input_polymorphic_shape does not fit"),
        ("b, 3", "input_polymorphic_shape does not fit"),
        ("_, 2", "neither fixed nor symbolic"),
        ("b, !", "input_polymorphic_shape does not fit"),
        ({"other": "b, 2"}, "structure of input_polymorphic_shape differs"),
        (7, "not a shape"),
    ],
)
def test_e5_a_shape_that_does_not_fit_the_input_is_named(shape, message):
    """E5, E23: wrong symbolic shapes, with the signature's name."""
    module = JaxModule(WEIGHTS, wave, input_polymorphic_shape=shape)
    with pytest.raises((ValueError, TypeError), match=rf"signature 'serve'(.*\n)*.*{message}"):
        ExportManager(module, [ServingConfig("serve", [tf.TensorSpec((None, 2), tf.float32)])])


@pytest.mark.slow
def test_e5_constraints_and_two_symbolic_sizes():
    """E5: ``polymorphic_constraints`` are honoured; without them this function cannot be traced."""

    def last_rows(p, x):
        return x[jnp.arange(2) + x.shape[0] - 2] * p if x.shape[0] >= 2 else x

    options = {"polymorphic_constraints": ["b >= 2"]}
    module = JaxModule(jnp.float32(2), last_rows, input_polymorphic_shape="b, c", jax2tf_kwargs=options)
    served = tf.function(module.methods[KEY], input_signature=[tf.TensorSpec((None, None))])
    np.testing.assert_array_equal(served(tf.reshape(tf.range(6.0), (3, 2))), [[4, 6], [8, 10]])
    np.testing.assert_array_equal(served(tf.ones((2, 5))), np.full((2, 5), 2))
    with pytest.raises(Exception, match=r"(?i)inconclusive"):
        JaxModule(jnp.float32(2), last_rows, input_polymorphic_shape="b, c").methods[KEY].get_concrete_function(
            tf.TensorSpec((None, None))
        )


def test_e5_platforms_are_those_asked_for():
    """E5: ``native_serialization_platforms``."""
    module = JaxModule(jnp.ones(1), lambda p, x: p * x, jax2tf_kwargs={"native_serialization_platforms": ["tpu"]})
    with pytest.raises(tf.errors.OpError, match=r"(?i)platform"):
        module.methods[KEY](tf.ones(1))


def test_e9_sixty_four_bit_values_are_computed_as_jax_computes_them():
    """E9: the variable keeps float64; JAX, unless told, computes in float32."""
    module = JaxModule({"w": np.array([1.5, 2.5])}, lambda p, x: p["w"] * x["a"], True)
    assert module.variables[0].dtype == tf.float64
    with tf.GradientTape() as tape:
        y = module.methods[KEY]({"a": tf.constant([2, 2], tf.float64)})
    assert y.dtype == tf.float32
    found = tape.gradient(y, module.variables[0])
    assert found.dtype == tf.float64
    np.testing.assert_array_equal(found, [2, 2])


def test_text_is_sent_to_the_preprocessor():
    module = JaxModule(jnp.ones(1), lambda p, x: p)
    with pytest.raises(TypeError, match="tf_preprocessor"):
        module.methods[KEY](tf.constant("text"))
