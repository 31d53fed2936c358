"""One program, with ``orbax.export`` and with ``plait.export``: its users change one import."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PARAMS = {"layers": [{"w": jnp.array([[1.0, 2.0], [3.0, -4.0]])}], "s~cale": jnp.float32(0.5)}
X = np.float32([[1, 2], [3, -1], [0, 4]])


def program(export, folder):
    """What a user writes. Returns everything that can be seen of the result."""
    module = export.JaxModule(
        PARAMS,
        {"f": lambda p, x: jnp.tanh(x @ p["layers"][0]["w"]) * p["s~cale"], "g": lambda p, x: {"z": x["a"] - x["b"]}},
        trainable={"layers": [{"w": True}], "s~cale": False},
        input_polymorphic_shape={"f": "b, ...", "g": "b, _"},
        jax2tf_kwargs={"f": {"with_gradient": True}, "g": None},
        jit_compile={"f": True, "g": False},
    )
    spec = tf.TensorSpec((None, 2), tf.float32, name="x")
    plain = tf.TensorSpec((None, 2), tf.float32)
    with_default = [spec, export.TensorSpecWithDefault(tf.TensorSpec((), tf.float32, name="k"), 3.0)]
    configs = [
        export.ServingConfig("one", [plain], method_key="f"),
        export.ServingConfig(["two", "three"], [{"a": spec, "b": plain}], method_key="g"),
        export.ServingConfig(
            "four",
            with_default,
            tf_preprocessor=lambda x, k: x * k if tf.reduce_sum(x) > 0 else x,
            tf_postprocessor=lambda y: (y, tf.argmax(y, 1)),
            method_key="f",
        ),
        export.ServingConfig("five", [spec], method_key="f", tf_postprocessor=lambda y: {"y": y}),
    ]
    manager = export.ExportManager(module, configs)
    manager.save(str(folder))
    loaded = manager.load(str(folder))
    served = loaded.signatures
    seen = {
        "variables": sorted((v.name, v.trainable) for v in manager.tf_module.variables),
        "inputs": {key: sorted(map(str, f.structured_input_signature[1].items())) for key, f in served.items()},
        "names": {key: sorted(f.structured_outputs) for key, f in served.items()},
        "gradient": module.with_gradient,
        "defaults": export.utils.CallableSignatures.from_saved_model(str(folder), ["serve"]).signatures["four"](x=X),
    }
    inputs = {"one": {"inputs_0": X}, "four": {"x": X, "k": np.float32(2)}, "five": {"x": X}}
    names = sorted(served["two"].structured_input_signature[1])
    inputs["two"] = inputs["three"] = dict(zip(names, (X, 2 * X), strict=True))
    with tf.GradientTape() as tape:
        tensor = tf.constant(X)
        tape.watch(tensor)
        y = served["one"](tensor)["output_0"]
    seen["outputs"] = {
        key: {name: value.numpy() for name, value in served[key](**tf.nest.map_structure(tf.constant, batch)).items()}
        for key, batch in inputs.items()
    }
    seen["derivative"] = tape.gradient(y, tensor).numpy()
    return seen


def test_the_same_program_gives_the_same_model(tmp_path):
    """E1 to E23 as a user of the reference sees them: names, defaults, gradients, values."""
    orbax = pytest.importorskip("orbax.export")
    theirs = program(orbax, tmp_path / "orbax")
    ours = program(importlib.import_module("plait.export"), tmp_path / "plait")
    for name in ("outputs", "defaults", "derivative"):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours.pop(name), theirs.pop(name)
        )
    assert ours == theirs
