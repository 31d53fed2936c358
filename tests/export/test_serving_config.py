"""Serving configurations: which method, which inputs, and the processors around it."""

import jax.numpy as jnp
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from plait.export import JaxModule, ServingConfig, TensorSpecWithDefault  # noqa: E402  (needs TensorFlow)

pytestmark = pytest.mark.oracle

SPEC = tf.TensorSpec((None,), tf.float32, name="x")


def test_e15_names_signature_and_method_are_resolved():
    """E15, E16."""
    one, two = (lambda x: 1), (lambda x: 2)
    config = ServingConfig("a", [SPEC])
    assert config.get_signature_keys() == ["a"]
    assert ServingConfig(("a", "b"), [SPEC]).get_signature_keys() == ["a", "b"]
    assert config.get_input_signature() == [SPEC]
    assert ServingConfig("a", (SPEC,)).get_input_signature() == (SPEC,)
    assert config.get_infer_step(one) is one
    assert config.get_infer_step({"only": one}) is one
    assert ServingConfig("a", [SPEC], method_key="second").get_infer_step({"first": one, "second": two}) is two


def test_e15_the_signature_of_the_preprocessor_stands_in():
    """E15, E16."""
    preprocessor = tf.function(lambda x: 2 * x, input_signature=[SPEC])
    assert ServingConfig("a", tf_preprocessor=preprocessor).get_input_signature() == (SPEC,)
    assert ServingConfig("a").get_input_signature(required=False) is None
    with pytest.raises(ValueError, match=r"at +signature 'a'\n.*input_signature=None"):
        ServingConfig("a").get_input_signature()
    with pytest.raises(ValueError, match=r"at +signature 'a'\n.*without input_signature"):
        ServingConfig("a", tf_preprocessor=lambda x: x).get_input_signature()


@pytest.mark.parametrize("key", [None, "third"])
def test_e16_a_method_that_is_not_there_is_named_with_those_that_are(key):
    """E16, and two rows of section 8."""
    config = ServingConfig("serve", [SPEC], method_key=key)
    with pytest.raises(
        ValueError, match=rf"method_key.*\n +at +signature 'serve'\n +found +{key!r}\n.*'first', 'second'"
    ):
        config.get_infer_step({"first": abs, "second": abs})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"signature_key": []}, ValueError, "signature_key"),
        ({"signature_key": ["a", 3]}, ValueError, "signature_key"),
        (
            {"signature_key": "a", "input_signature": SPEC},
            TypeError,
            r"one entry for each positional input\n +at +signature 'a'\n +found +a TensorSpec\n"
            r" +expected +a list or tuple of pytrees of tf\.TensorSpec\n +do +input_signature=\[tf\.TensorSpec\(",
        ),
        (
            {"signature_key": "a", "input_signature": [(None, 2)]},
            TypeError,
            r"not a spec\n +at +signature 'a'\n +found +an int\n +expected +tf\.TensorSpec or TensorSpecWithDefault\n"
            r" +do +input_signature=\[tf\.TensorSpec\(",
        ),
        ({"signature_key": "a", "input_signature": ["x"]}, TypeError, "not a spec"),
    ],
)
def test_e15_wrong_fields_are_named(arguments, kind, message):
    """E15; wrong input signatures."""
    with pytest.raises(kind, match=message):
        ServingConfig(**arguments)


def test_e17_bind_runs_processors_in_tensorflow_and_the_method_in_jax():
    """E17: the method sees NumPy arrays, and NumPy arrays come out."""
    seen = []

    def method(x):
        seen.append(type(x["a"]))
        return {"y": x["a"] * 2}

    config = ServingConfig(
        ["s", "t"],
        [tf.TensorSpec((None,), tf.string), tf.TensorSpec((None,), tf.float32)],
        tf_preprocessor=lambda text, scale: {"a": tf.strings.to_number(text) * scale},
        tf_postprocessor=lambda out: {"text": tf.strings.as_string(out["y"], precision=1)},
    )
    bound = config.bind(lambda x: method(x))
    assert set(bound) == {"s", "t"}
    found = bound["t"](["1.5", "2"], [1, 2])
    assert seen == [np.ndarray]
    assert isinstance(found["text"], np.ndarray)
    assert found["text"].tolist() == [b"3.0", b"8.0"]


def test_e17_without_numpy_everything_stays_in_tensorflow():
    """E17."""
    module = JaxModule(jnp.float32(3), lambda p, x: p * x)
    bound = ServingConfig("s", [SPEC], tf_postprocessor=lambda y: (y, y + 1)).bind(module.methods, require_numpy=False)
    found = bound["s"](tf.constant([1.0]))
    assert all(tf.is_tensor(each) for each in found)
    assert [each.numpy().tolist() for each in found] == [[3.0], [4.0]]
    plain = ServingConfig("s", [SPEC]).bind(module.jax_methods)["s"](np.float32([2]))
    np.testing.assert_array_equal(plain, [6])


def test_e17_several_inputs_need_a_preprocessor():
    """E17, and its row of section 8."""
    bound = ServingConfig("serve", [SPEC, SPEC]).bind(lambda x: x)
    with pytest.raises(ValueError, match=r"at +signature 'serve'\n.*2 inputs\n(.*\n)*.*pack"):
        bound["serve"](np.ones(1), np.ones(1))


def test_e17_preprocessors_may_have_control_flow_of_python():
    """E17: processors are converted, as TensorFlow's users expect."""

    def preprocessor(x):
        return -x if tf.reduce_sum(x) < 0 else x

    bound = ServingConfig("s", [SPEC], preprocessor).bind(lambda x: x)
    assert bound["s"](np.float32([-1])).tolist() == bound["s"](np.float32([1])).tolist() == [1]


def test_e22_specs_with_defaults_are_specs():
    """E15, E22."""
    config = ServingConfig("s", [{"a": SPEC, "b": TensorSpecWithDefault(SPEC, [1.0])}])
    assert config.get_input_signature()[0]["b"].tensor_spec is SPEC
