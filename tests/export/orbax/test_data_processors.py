"""Processors in a SavedModel: by keys, in a row, of TensorFlow and of JAX, beside the same steps written by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.export.data_processors import DataProcessor, JaxDataProcessor, TfDataProcessor
from plait.export.orbax.typing import ApplyFnInfo
from tests.compare import CLOSE, assert_same

tf = pytest.importorskip("tensorflow")

from plait.export import ExportManager, JaxModule, ServingConfig, TensorSpecWithDefault, config, validate  # noqa: E402

pytestmark = pytest.mark.oracle

W = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
TEXT = np.array([["1", "2"], ["3.5", "-4"], ["0", "0"]])
SIGNATURE = [{"text": tf.TensorSpec((None, 2), tf.string), "factor": tf.TensorSpec((), tf.float32)}]


def apply(params, x):
    return {"logits": x["ids"] @ params["w"], "total": x["ids"].sum(1)}


def module(**arguments):
    info = ApplyFnInfo(apply, ("ids",), ("logits", "total"))
    return JaxModule({"w": W}, info, input_polymorphic_shape="b, 2", **arguments)


def steps():
    before = [
        TfDataProcessor(lambda raw, factor: raw * factor, "scale", ("raw", "factor"), ("ids",)),
        TfDataProcessor(tf.strings.to_number, "parse", ("text",), ("raw",)),
    ]
    after = [
        TfDataProcessor(lambda p: {"label": tf.strings.as_string(tf.argmax(p, 1))}, "label", ("best",), ("label",)),
        JaxDataProcessor(
            lambda x: (jax.nn.softmax(x), x - x.max(1, keepdims=True)), "soft", ("logits",), ("p", "best"), "b, ..."
        ),
    ]
    return {"preprocessors": before, "postprocessors": after}


def expected(text, factor):
    ids = text.astype(np.float32) * factor
    logits = ids @ np.asarray(W)
    return {
        "p": np.asarray(jax.nn.softmax(logits)),
        "total": ids.sum(1),
        "label": np.array([str(each).encode() for each in logits.argmax(1)], object),
    }


@pytest.mark.slow
def test_e15_a_pipeline_by_keys_is_saved_and_served(tmp_path):
    """E15, E17, E18: text in, text out, steps out of order; the saved model, the bound function and NumPy agree."""
    served = ServingConfig("serve", SIGNATURE, **steps())
    manager = ExportManager(module(), [served])
    manager.save(tmp_path / "model")
    loaded = manager.load(tmp_path / "model")
    for rows in (1, 3):
        found = loaded.signatures["serve"](text=tf.constant(TEXT[:rows]), factor=tf.constant(2.0))
        assert_same(dict(found), expected(TEXT[:rows], 2), CLOSE)
    batch = {"text": TEXT, "factor": np.float32(3)}
    bound = served.bind(module().jax_methods)["serve"](batch)
    assert_same(dict(bound), expected(TEXT, 3), CLOSE)
    assert all(isinstance(value, np.ndarray) for value in bound.values())
    option = validate.ValidationReportOption(floating_rtol=1e-5, floating_atol=1e-5)
    reports = validate.ValidationManager(module(), [served], [batch]).validate(loaded, report_option=option)
    assert reports["serve"].status is validate.Status.Pass


def test_e15_steps_in_a_row_are_what_one_preprocessor_is(tmp_path):
    """E15, E16: without keys, for a method without keys; the signature is that of the first step."""
    plain = JaxModule({"w": W}, lambda p, x: x @ p["w"], input_polymorphic_shape="b, 2")
    spec = [tf.TensorSpec((None, 2), tf.string, name="text"), tf.TensorSpec((), tf.float32, name="factor")]
    first = tf.function(lambda text, factor: tf.strings.to_number(text) * factor, input_signature=spec)
    row = ServingConfig(
        "serve",
        preprocessors=[TfDataProcessor(first), TfDataProcessor(lambda x: x + 1)],
        postprocessors=[
            JaxDataProcessor(jnp.tanh, input_polymorphic_shape="b, 3"),
            TfDataProcessor(lambda y: {"y": y}),
        ],
    )
    assert row.get_input_signature() == first.input_signature
    by_hand = ServingConfig(
        "serve",
        spec,
        tf_preprocessor=lambda text, factor: tf.strings.to_number(text) * factor + 1,
        tf_postprocessor=lambda y: {"y": tf.tanh(y)},
    )
    outputs = []
    for number, each in enumerate((row, by_hand)):
        manager = ExportManager(plain, [each])
        manager.save(tmp_path / str(number))
        served = manager.load(tmp_path / str(number)).signatures["serve"]
        outputs.append(served(text=tf.constant(TEXT), factor=tf.constant(0.5))["y"])
        np.testing.assert_allclose(each.bind(plain.jax_methods)["serve"](TEXT, 0.5)["y"], outputs[-1], rtol=1e-5)
    np.testing.assert_allclose(*outputs, rtol=1e-5)


def test_e15_a_method_with_keys_needs_no_processors():
    """E15: its inputs and outputs have the names of the keys."""
    served = ServingConfig("serve", [{"ids": TensorSpecWithDefault(tf.TensorSpec((None, 2)), [[1.0, 2.0]])}])
    (signature,) = ExportManager(module(), [served]).serving_signatures.values()
    concrete = signature.get_concrete_function()
    assert sorted(concrete.structured_outputs) == ["logits", "total"]
    assert [tensor.name for tensor in concrete.inputs if tensor.dtype == tf.float32] == ["ids:0"]
    np.testing.assert_allclose(signature()["total"], [3.0])


def test_e15_gradients_pass_a_jax_processor_on_request():
    """E15, E7: as for methods, they are refused unless asked for."""
    x = tf.constant([[1.0, 2.0]])
    for options, derivative in (({"with_gradient": True}, [[2.0, 4.0]]), ({}, None)):
        step = JaxDataProcessor(jnp.square, jax2tf_kwargs=options)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(step(x))
        if derivative is None:
            with pytest.raises(LookupError, match="with_gradient=False"):
                tape.gradient(y, x)
        else:
            assert tape.gradient(y, x).numpy().tolist() == derivative


def test_e15_a_class_of_ones_own_is_a_step():
    """E15."""

    class Half(DataProcessor):
        def __call__(self, *tensors):
            return tensors[0] / 2

    plain = JaxModule({}, lambda p, x: x + 1)
    served = ServingConfig("serve", [tf.TensorSpec((2,))], preprocessors=[Half("half")])
    assert ExportManager(plain, [served]).serving_signatures["serve"](tf.constant([2.0, 4.0])).numpy().tolist() == [
        2,
        3,
    ]


KEYED = TfDataProcessor(lambda x: x, "keyed", ("text",), ("ids",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preprocessors": [KEYED, TfDataProcessor(abs)]}, "lacks keys that the others have\n.*\n.*'abs'"),
        ({"preprocessors": [TfDataProcessor(abs, "half", ("x",))]}, "lacks keys that the others have\n.*\n.*'half'"),
        ({"preprocessors": [KEYED], "tf_postprocessor": abs}, "exclude each other"),
        ({"postprocessors": [KEYED], "tf_preprocessor": abs}, "exclude each other"),
    ],
)
def test_e15_steps_that_contradict_each_other_are_refused(arguments, message):
    """E15."""
    with pytest.raises(ValueError, match=message):
        ServingConfig("serve", SIGNATURE, **arguments)


def test_e15_keys_that_are_missing_are_named_with_their_signature():
    """E15, E23."""
    served = ServingConfig("serve", SIGNATURE, preprocessors=[steps()["preprocessors"][0]])
    with pytest.raises(ValueError, match=r"signature 'serve': 'scale' takes an unknown value\n.*'raw'"):
        ExportManager(module(), [served])
    plain = JaxModule({"w": W}, lambda p, x: x @ p["w"])
    says = rf"need a method with keys\n +at +signature 'serve'\n +found +{re.escape(repr(KEYED))}, and a method without"
    with pytest.raises(ValueError, match=says + r"(.*\n)*.*ApplyFnInfo"):
        ExportManager(plain, [ServingConfig("serve", SIGNATURE, preprocessors=[KEYED])])


@pytest.mark.parametrize("kind", [TfDataProcessor, JaxDataProcessor])
def test_e15_a_processor_is_made_of_a_function(kind):
    """E15."""
    with pytest.raises(TypeError, match=kind.__name__):
        kind(3)
    assert repr(kind(abs)) == f"{kind.__name__}('abs')"


@pytest.mark.slow
def test_e40_signatures_of_the_preprocessors_alone(tmp_path):
    """E40: what the method would get, as a list."""
    with config.obx_export_tf_preprocess_only(True):
        manager = ExportManager(module(), [ServingConfig("serve", SIGNATURE, **steps())])
        with pytest.raises(ValueError, match=r"no preprocessor to export\n +at +signature 'bare'"):
            ExportManager(module(), [ServingConfig("bare", [{"ids": tf.TensorSpec((None, 2))}])])
    manager.save(tmp_path / "model")
    served = manager.load(tmp_path / "model").signatures["serve"]
    found = served(text=tf.constant(TEXT), factor=tf.constant(2.0))
    assert list(found) == ["output_0"]
    np.testing.assert_allclose(found["output_0"], 2 * TEXT.astype(np.float32))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("preprocessor", [lambda x: 2 * x, lambda x: {"b": 2 * x, "a": x}, lambda x: (x, 3 * x)])
def test_e40_preprocessors_alone_are_those_of_orbax(preprocessor):
    """E40: names and values of the outputs."""
    orbax = pytest.importorskip("orbax.export")
    import plait.export

    found = []
    for export in (orbax, plait.export):
        plain = export.JaxModule({"w": W}, lambda p, x: x @ p["w"], input_polymorphic_shape="b, 2")
        served = export.ServingConfig("serve", [tf.TensorSpec((None, 2), name="x")], tf_preprocessor=preprocessor)
        with export.config.obx_export_tf_preprocess_only(True):
            signature = export.ExportManager(plain, [served]).serving_signatures["serve"]
        found.append([value.numpy().tolist() for value in tf.nest.flatten(signature(tf.ones((2, 2))))])
    assert found[0] == found[1]
