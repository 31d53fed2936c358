"""Signatures traced, saved and loaded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait

tf = pytest.importorskip("tensorflow")
from plait.export import ExportManager, JaxModule, ServingConfig, TensorSpecWithDefault  # noqa: E402  (needs TensorFlow)

pytestmark = pytest.mark.oracle

SPEC = tf.TensorSpec((None, 2), tf.float32, name="x")
X = np.float32([[1, 2], [3, 4], [5, 6]])


def scaling(factor=2.0, **arguments):
    return JaxModule({"w": jnp.float32(factor)}, lambda p, x: p["w"] * x, input_polymorphic_shape="b, 2", **arguments)


@pytest.mark.slow
def test_e18_several_methods_and_names_share_one_set_of_weights(tmp_path):
    """E18, E19, E20: weights are stored once, in variables and not in the program."""
    draw = np.random.default_rng(0)
    params = {
        "one": draw.normal(size=(64, 512)).astype(np.float32),
        "two": draw.normal(size=(512, 3)).astype(np.float32),
    }
    methods = {
        "embed": lambda p, x: jnp.tanh(x @ p["one"]),
        "classify": lambda p, x: jax.nn.softmax(jnp.tanh(x @ p["one"]) @ p["two"]),
    }
    module = JaxModule(params, methods, trainable=True, input_polymorphic_shape=dict.fromkeys(methods, "b, ..."))
    spec = tf.TensorSpec((None, 64), tf.float32, name="x")
    configs = [
        ServingConfig("embed", [spec], method_key="embed"),
        ServingConfig(["serving_default", "classify"], [spec], method_key="classify"),
        ServingConfig("twice", [spec], tf_preprocessor=lambda x: 2 * x, method_key="classify"),
    ]
    manager = ExportManager(module, configs)
    assert set(manager.serving_signatures) == {"embed", "serving_default", "classify", "twice"}
    assert {v.name for v in manager.tf_module.variables} == {"one:0", "two:0"}
    manager.save(tmp_path / "model")
    stored = sum(array.nbytes for array in params.values())
    data = sum(file.stat().st_size for file in (tmp_path / "model" / "variables").iterdir())
    program = (tmp_path / "model" / "saved_model.pb").read_bytes()
    assert stored <= data < 1.1 * stored
    assert all(array.tobytes()[:256] not in program for array in params.values())
    loaded = manager.load(tmp_path / "model")
    assert len(loaded.computation_module.tf_var_leaves) == 2
    for size in (1, 4):
        x = draw.normal(size=(size, 64)).astype(np.float32)
        for key, expected in {
            "embed": methods["embed"](params, x),
            "serving_default": methods["classify"](params, x),
            "classify": methods["classify"](params, x),
            "twice": methods["classify"](params, 2 * x),
        }.items():
            found = loaded.signatures[key](x=x)["output_0"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_e14_saved_values_are_the_current_ones(tmp_path):
    """E14, E20: an update after tracing reaches bound and saved signatures."""
    module = scaling()
    manager = ExportManager(module, [ServingConfig("s", [SPEC])])
    module.update_variables({"w": jnp.float32(5)})
    np.testing.assert_array_equal(manager.serving_signatures["s"](X), 5 * X)
    manager.save(tmp_path / "model")
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.signatures["s"](x=X)["output_0"], 5 * X)
    loaded.computation_module.tf_var_leaves[0].assign(7.0)
    np.testing.assert_array_equal(loaded.signatures["s"](x=X)["output_0"], 7 * X)


@pytest.mark.slow
def test_e21_sequences_are_numbered_and_one_config_makes_the_model_callable(tmp_path):
    """E18, E21."""
    config = ServingConfig("s", [SPEC], tf_postprocessor=lambda y: (y, y + 1))
    ExportManager(scaling(), [config]).save(tmp_path / "one")
    loaded = tf.saved_model.load(str(tmp_path / "one"))
    outputs = loaded.signatures["s"](x=X)
    assert set(outputs) == {"output_0", "output_1"}
    np.testing.assert_array_equal(outputs["output_1"], 2 * X + 1)
    np.testing.assert_array_equal(loaded(X)[1], 2 * X + 1)
    configs = [config, ServingConfig("t", [SPEC])]
    ExportManager(scaling(), configs).save(tmp_path / "two")
    assert not callable(tf.saved_model.load(str(tmp_path / "two")))


@pytest.mark.slow
def test_e15_tables_of_processors_are_saved_and_without_them_saving_fails(tmp_path):
    """E15, E19: text in, text out; a table that is not named as extra is an error that says so."""
    keys, values = tf.constant(["cat", "dog"]), tf.constant([1, 2], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)

    def preprocessor(text):
        return tf.cast(table.lookup(text), tf.float32)

    module = JaxModule(jnp.float32(10), lambda p, x: p * x, input_polymorphic_shape="b")
    spec = tf.TensorSpec((None,), tf.string, name="text")
    after = lambda y: {"text": tf.strings.as_string(tf.cast(y, tf.int32))}
    config = ServingConfig("s", [spec], preprocessor, after, extra_trackable_resources=[{"table": table}])
    manager = ExportManager(module, [config])
    manager.save(tmp_path / "model")
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    found = loaded.signatures["s"](text=tf.constant(["dog", "cow"]))["text"]
    assert found.numpy().tolist() == [b"20", b"-10"]
    without = ExportManager(module, [ServingConfig("s", [spec], preprocessor, after)])
    with pytest.raises(ValueError, match=r"is not saved with the model(.*\n)*.*extra_trackable_resources"):
        without.save(tmp_path / "without")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_e15_the_preprocessors_own_signature_is_served(tmp_path):
    """E15, E17."""
    both = [SPEC, tf.TensorSpec((), tf.float32, name="shift")]
    preprocessor = tf.function(lambda x, shift: x + shift, input_signature=both)
    manager = ExportManager(scaling(), [ServingConfig("s", tf_preprocessor=preprocessor)])
    manager.save(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["s"]
    np.testing.assert_array_equal(served(x=X, shift=tf.constant(1.0))["output_0"], 2 * (X + 1))


@pytest.mark.slow
def test_e20_overrides_replace_and_add_signatures(tmp_path):
    """E20."""
    manager = ExportManager(scaling(), [ServingConfig("s", [SPEC])])
    negative = tf.function(lambda x: {"y": -x}, input_signature=[SPEC])
    manager.save(tmp_path / "model", signature_overrides={"s": negative, "more": manager.serving_signatures["s"]})
    served = tf.saved_model.load(str(tmp_path / "model")).signatures
    np.testing.assert_array_equal(served["s"](x=X)["y"], -X)
    np.testing.assert_array_equal(served["more"](x=X)["output_0"], 2 * X)
    assert set(manager.serving_signatures) == {"s"}


@pytest.mark.parametrize("trainable", [True, False])
def test_e20_gradients_are_saved_exactly_if_a_parameter_is_trainable(tmp_path, trainable):
    """E20: whatever the given options say, which are not changed."""
    manager = ExportManager(scaling(trainable=trainable), [ServingConfig("s", [SPEC])])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=not trainable)
    manager.save(tmp_path / "model", options)
    assert options.experimental_custom_gradients is not trainable
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    x = tf.constant(X)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loaded(x)
        return tape.gradient(y, x)

    if trainable:
        np.testing.assert_array_equal(gradient(), np.full_like(X, 2))
    else:
        with pytest.raises(LookupError, match="with_gradient=False"):
            gradient()


def test_e20_a_model_is_written_whole_or_not_at_all(tmp_path):
    """E20: what is there already stays, unless the caller says otherwise."""
    manager = ExportManager(scaling(), [ServingConfig("s", [SPEC])])
    target = tmp_path / "model"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(OSError, match=r"already(.*\n)*.*overwrite=True"):
        manager.save(target)
    failing = tf.function(lambda x: {"a": {"b": x}}, input_signature=[SPEC])
    with pytest.raises(ValueError):
        manager.save(target, signature_overrides={"s": failing}, overwrite=True)
    assert [file.name for file in tmp_path.rglob("*")] == ["model", "mine.txt"]
    manager.save(target, overwrite=True)
    assert not (target / "mine.txt").exists()
    (target / "older.txt").write_text("older")
    manager.save(target)  # an older SavedModel, as in Orbax
    assert not (target / "older.txt").exists()
    assert tf.saved_model.contains_saved_model(str(target))
    with pytest.raises(OSError, match="cannot be written into this folder"):
        manager.save(tmp_path / "nowhere" / "model")


@pytest.mark.parametrize("options", [{"experimental_custom_gradients": True}, "options", 3])
def test_e20_other_save_options_are_refused(tmp_path, options):
    """E20, and its row of section 8."""
    manager = ExportManager(scaling(), [ServingConfig("s", [SPEC])])
    found = rf"found +an? {type(options).__name__}\n +expected +tf\.saved_model\.SaveOptions or None\n"
    with pytest.raises(ValueError, match=rf"save_options has the wrong type\n +{found}"):
        manager.save(tmp_path / "model", options)


@pytest.mark.parametrize("key", ["_hidden", "~hidden", "a b"])
def test_e10_a_parameter_that_tensorflow_cannot_save_is_named_before_anything_is_written(tmp_path, key):
    """E10, and its row of section 8."""
    module = JaxModule({key: {"w": jnp.ones(2)}}, lambda p, x: x)
    manager = ExportManager(module, [ServingConfig("s", [tf.TensorSpec((2,), tf.float32)])])
    with pytest.raises(ValueError, match=rf"at +params\['{key}'\]\['w'\]\n.*'{key.replace('~', '_')}\.w'"):
        manager.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_e18_signature_names_are_unique():
    """E18, and its row of section 8."""
    with pytest.raises(ValueError, match=r"same name\n +at +b\n +found +'b', of config 0 and of config 1"):
        ExportManager(scaling(), [ServingConfig(["a", "b"], [SPEC]), ServingConfig("b", [SPEC])])
    with pytest.raises(ValueError, match=r"same name\n +at +a\n +found +'a', of config 0 and of config 0"):
        ExportManager(scaling(), [ServingConfig(["a", "a"], [SPEC])])


def fails(error):
    def preprocessor(x):
        raise error

    return preprocessor


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({}, ValueError, r"^signature 'serve': there is no input signature"),
        (
            {"input_signature": [SPEC, SPEC]},
            ValueError,
            r"^signature 'serve': .*one input(.*\n)*.*2 inputs(.*\n)*.*pack",
        ),
        ({"input_signature": [SPEC], "method_key": "other"}, ValueError, r"^signature 'serve': (.*\n)*.*'other'"),
        ({"input_signature": [tf.TensorSpec((None, 3))]}, ValueError, r"^signature 'serve': "),
        ({"input_signature": [tf.TensorSpec(None)]}, ValueError, r"^signature 'serve': the rank"),
        ({"input_signature": [tf.TensorSpec((), tf.string)]}, TypeError, r"^signature 'serve': .*numbers"),
        (
            {"input_signature": [SPEC], "tf_postprocessor": lambda y: {"a": {"b": y}}},
            ValueError,
            r"^signature 'serve': a signature's outputs are nested",
        ),
        (
            {"input_signature": [SPEC], "tf_preprocessor": fails(KeyError("mine"))},
            KeyError,
            r"signature .*serve(.*\n)*.*mine",
        ),
        (
            {"input_signature": [SPEC], "tf_preprocessor": fails(tf.errors.NotFoundError(None, None, "mine"))},
            RuntimeError,
            r"^signature 'serve': (.*\n)*.*mine",
        ),
        (
            {"input_signature": [{"a": SPEC, "b": TensorSpecWithDefault(SPEC, [[1.0, 2.0]])}]},
            ValueError,
            "^signature 'serve': only a part of an input has defaults",
        ),
    ],
)
def test_e23_errors_begin_with_the_name_of_the_signature(config, kind, message):
    """E23, and rows of section 8."""
    with pytest.raises(kind, match=message):
        ExportManager(scaling(), [ServingConfig("serve", **config)])


def test_a_wrong_module_is_refused():
    with pytest.raises(TypeError, match="JaxModule"):
        ExportManager(plait.Linear(2, 2, rngs=plait.Rngs(0)), [ServingConfig("s", [SPEC])])


@pytest.mark.slow
def test_models_with_state_and_batches_of_dictionaries_are_served(tmp_path):
    """E2, E15: a pytree of inputs under the names of its specs."""
    model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.BatchNorm(3, rngs=plait.Rngs(0)))
    model.eval()
    graphdef, state = plait.split(model)
    module = JaxModule(
        plait.to_pure_dict(state),
        lambda p, x: {"y": plait.merge(graphdef, p)(x["left"] + x["right"])},
        input_polymorphic_shape="b, 2",
    )
    spec = {side: tf.TensorSpec((None, 2), tf.float32, name=side) for side in ("left", "right")}
    ExportManager(module, [ServingConfig("s", [spec])]).save(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["s"]
    np.testing.assert_allclose(served(left=X, right=X)["y"], model(2 * X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("params", "paths"),
    [
        ({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, r"params\['a'\]\['b'\] and of params\['a\.b'\]"),
        ({"a~b": jnp.ones(1), "a_b": jnp.ones(1)}, r"params\['a_b'\] and of params\['a~b'\]"),
    ],
)
def test_e10_two_variables_of_one_name_are_refused(tmp_path, params, paths):
    """E10, E33: by this door too, with both paths."""
    module = JaxModule(params, lambda p, x: sum(jax.tree.leaves(p)) + x)
    manager = ExportManager(module, [ServingConfig("serve", [tf.TensorSpec((1,))])])
    with pytest.raises(ValueError, match=rf"same name in the file\n +at .*\n +found +.*, of {paths}"):
        manager.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
