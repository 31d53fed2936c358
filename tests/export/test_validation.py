"""The signatures of a SavedModel beside the module that they were made from. (rule E30)"""

import jax.numpy as jnp
import numpy as np
import pytest

from plait.export.validate import ValidationManager

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Module, configs and the path of the model."""
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
    return module, configs, path


SHIFTED = [{"x": np.ones((size, 2), np.float32), "shift": np.float32(1)} for size in (1, 3)]
INPUTS = {
    "scale": SHIFTED,
    "text": [[[[1, 1], [2, 2]], 2]],
    "sum": [{"a": np.float32([-1, 2]), "b": np.float32([1, 1])}] * 3,
}


@pytest.mark.slow
def test_e30_a_saved_model_passes_in_every_signature(saved):
    """E30: mappings and sequences as batches, text, several methods."""
    module, configs, path = saved
    reports = ValidationManager(module, configs, INPUTS).validate(path)
    assert {key: found.detail.split(", within")[0] for key, found in reports.items() if found.passed} == {
        "scale": "2 examples, 16 values",
        "text": "1 examples, 8 values",
        "sum": "3 examples, 12 values",
    }
    assert [len(found.milliseconds) for found in reports.values()] == [2, 1, 3]


@pytest.mark.slow
def test_e30_a_model_with_other_weights_fails(saved):
    """E30: one list of inputs for all signatures."""
    module, configs, path = saved
    module.update_variables({"w": jnp.float32(3)})
    try:
        reports = ValidationManager(module, configs[:1], SHIFTED).validate(path)
    finally:
        module.update_variables({"w": jnp.float32(2)})
    assert {key: (found.passed, found.max_abs_difference) for key, found in reports.items()} == dict.fromkeys(
        ("scale", "text"), (False, np.inf)
    )


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "signature 'scale'"),
        ({"scale": SHIFTED, "text": SHIFTED}, "signature 'sum'"),
        ({**INPUTS, "other": []}, "'other'"),
    ],
)
def test_e30_wrong_inputs_are_named(saved, inputs, message):
    """E30."""
    with pytest.raises(ValueError, match=message):
        ValidationManager(*saved[:2], inputs)
