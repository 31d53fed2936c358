"""Functions and parameters as a ``tf.Module``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import ArgumentError

tf = pytest.importorskip("tensorflow")
from plait.export.jax_module import ExportModelType, JaxModule  # noqa: E402  (needs TensorFlow)

pytestmark = pytest.mark.oracle

KEY = JaxModule.DEFAULT_METHOD_KEY


def params():
    draw = np.random.default_rng(0)
    return {"dense": {"kernel": jnp.asarray(draw.normal(size=(2, 3)), jnp.float32), "bias": jnp.zeros(3)}}


def affine(p, x):
    return x @ p["dense"]["kernel"] + p["dense"]["bias"][None]


def double(p, x):
    return 2 * affine(p, x)


def test_e3_the_module_is_a_tf_module_with_the_classic_positional_order():
    """E3, E4."""
    module = JaxModule(params(), affine, True, "b, ...", {}, False, "my_module", None, None)
    assert isinstance(module, tf.Module)
    assert module.name == "my_module"
    assert KEY == "jax_module_default_method"
    assert set(module.methods) == {KEY}


@pytest.mark.parametrize("jit_compile", [True, False])
def test_e12_methods_agree_with_jax_at_every_batch_size(jit_compile):
    """E12, E13."""
    module = JaxModule(params(), affine, input_polymorphic_shape="b, 2", jit_compile=jit_compile)
    for size in (1, 4):
        x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
        np.testing.assert_allclose(module.methods[KEY](tf.constant(x)), affine(params(), x), rtol=1e-5)
        np.testing.assert_allclose(module.jax_methods[KEY](x), affine(params(), x), rtol=1e-5)


def test_e5_inputs_and_outputs_are_pytrees():
    """E2, E5: a pytree of shapes for a pytree of inputs, integers and booleans among the outputs."""

    def apply(p, x):
        total = x["a"] @ p["w"] + x["b"][0].sum()
        return {"y": total, "parts": (x["b"][0] > 0, jnp.argmax(x["a"], 1))}

    shapes = {"a": "b, 2", "b": (None,)}
    module = JaxModule({"w": jnp.ones((2, 1))}, apply, input_polymorphic_shape=shapes)
    x = {"a": np.ones((3, 2), np.float32), "b": (np.ones(4, np.float32),)}
    traced = tf.function(
        module.methods[KEY], input_signature=[{"a": tf.TensorSpec((None, 2)), "b": (tf.TensorSpec((4,)),)}]
    )
    found, expected = traced(jax.tree.map(tf.constant, x)), apply(module.model_params, x)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda t: t.numpy(), found), dict(expected))


@pytest.mark.slow
def test_e5_states_and_modules_of_plait_are_parameters():
    """E5."""
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    graphdef, state = plait.split(model)
    x = tf.ones((2, 2))
    of_state = JaxModule(state, lambda p, x: plait.merge(graphdef, p)(x))
    of_module = JaxModule(model, lambda m, x: m(x))
    np.testing.assert_allclose(of_state.methods[KEY](x), model(np.ones((2, 2))), rtol=1e-5)
    np.testing.assert_allclose(of_module.methods[KEY](x), model(np.ones((2, 2))), rtol=1e-5)
    assert {v.name for v in of_state.variables} == {"bias.value:0", "kernel.value:0"}


def test_e9_variables_have_shape_dtype_values_and_flags_of_their_leaves_and_lie_on_the_cpu():
    """E9."""
    tree = {"a": jnp.ones(2, jnp.bfloat16), "b": np.arange(3, dtype=np.int8), "c": jnp.float32(2)}
    module = JaxModule(tree, lambda p, x: p["c"] * x, trainable={"a": True, "b": False, "c": False})
    by_name = {v.name.removesuffix(":0"): v for v in module.variables}
    for name, leaf in tree.items():
        assert by_name[name].shape == leaf.shape
        assert by_name[name].dtype.as_numpy_dtype == leaf.dtype
        np.testing.assert_array_equal(by_name[name].numpy(), np.asarray(leaf))
        assert "CPU" in by_name[name].device
    assert [v.name for v in module.trainable_variables] == ["a:0"]
    assert module.with_gradient


def test_e9_parameters_that_lie_on_several_devices_are_gathered():
    """E9, E26: without a mesh context, however JAX has laid them out."""
    mesh = jax.sharding.Mesh(jax.devices(), "d")
    laid_out = jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh, jax.P("d")))
    module = JaxModule({"w": laid_out}, lambda p, x: p["w"] * x)
    np.testing.assert_array_equal(module.methods[KEY](tf.ones(16)), np.arange(16.0))
    module.update_variables({"w": laid_out + 1})
    np.testing.assert_array_equal(module.methods[KEY](tf.ones(16)), np.arange(16.0) + 1)


def test_e6_checks_come_in_the_order_of_the_contract():
    """E6: an empty mapping first, then symbolic shapes, conversion options, compilation."""
    wrong = {"input_polymorphic_shape": {}, "jax2tf_kwargs": {}, "jit_compile": {}}
    right = {"input_polymorphic_shape": {"f": None}, "jax2tf_kwargs": {"f": None}, "jit_compile": {"f": True}}
    with pytest.raises(ValueError, match="apply_fn is an empty mapping"):
        JaxModule(params(), {}, **wrong)
    for name in wrong:
        with pytest.raises(ValueError, match=f"^{name} does not have the methods"):
            JaxModule(params(), {"f": affine}, **wrong)
        wrong[name] = right[name]
    JaxModule(params(), {"f": affine}, **wrong)


def test_e11_only_the_flat_list_of_variables_is_tracked():
    """E11: dictionaries given in come out as they are, and TensorFlow sees the list alone."""
    module = JaxModule(params(), affine)
    assert type(module.model_params) is dict
    assert [v.name for v in module.variables] == ["dense.bias:0", "dense.kernel:0"]
    assert len(module._trackable_children()) == 1
    assert module.submodules == ()


def test_e12_new_values_are_seen_without_a_new_trace():
    """E12, E14."""
    traces = []

    def counted(p, x):
        traces.append(1)
        return affine(p, x)

    module = JaxModule(params(), counted)
    x = tf.ones((1, 2))
    before = module.methods[KEY](x)
    count = len(traces)
    new = jax.tree.map(lambda leaf: leaf + 1, params())
    module.update_variables(new)
    np.testing.assert_allclose(module.methods[KEY](x), affine(new, np.ones((1, 2), np.float32)), rtol=1e-5)
    assert len(traces) == count
    np.testing.assert_allclose(module.jax_methods[KEY](np.ones((1, 2), np.float32)), before + 3, rtol=1e-5)
    assert module.model_params is new


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: {"dense": {"kernel": p["dense"]["kernel"]}},
            r"^the structure of the new.*\n +found +PyTreeDef(.*\n)*.*PyTreeDef(.*\n)* +do +pass a tree like",
        ),
        (
            lambda p: jax.tree.map(lambda leaf: leaf[:1], p),
            r"^the shape or dtype of a new parameter differs from its variable\n +at +dense\.bias\n"
            r" +found +float32\[1\]\n.*float32\[3\]\n +do +convert it first: array\.astype\(dtype\)\.reshape\(shape\)$",
        ),
        (lambda p: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p), r"at +dense\.bias\n +found +bfloat16\[3\]"),
        (
            lambda p: {"dense": {"bias": p["dense"]["bias"] + 1, "kernel": p["dense"]["kernel"][:1]}},
            r"at +dense\.kernel",
        ),
    ],
)
def test_e14_an_update_that_does_not_fit_changes_nothing(change, message):
    """E14, and the two rows of section 8 on updates."""
    module = JaxModule(params(), affine)
    before, old = [v.numpy() for v in module.variables], module.model_params
    with pytest.raises(ValueError, match=message):
        module.update_variables(change(params()))
    for variable, value in zip(module.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert module.model_params is old


def test_e13_several_methods_have_their_own_options():
    """E6, E8, E13."""
    kwargs = {"one": None, "two": {"native_serialization_platforms": ("cpu",)}}
    module = JaxModule(
        params(),
        {"one": affine, "two": double},
        input_polymorphic_shape={"one": None, "two": "b, ..."},
        jax2tf_kwargs=kwargs,
        jit_compile={"one": False, "two": True},
    )
    x = np.ones((2, 2), np.float32)
    np.testing.assert_allclose(module.methods["two"](tf.constant(x)), 2 * module.methods["one"](tf.constant(x)))
    np.testing.assert_allclose(module.jax_methods["two"](x), double(params(), x))
    assert module.apply_fn_map == {"one": affine, "two": double}
    assert module.input_polymorphic_shape_map == {"one": None, "two": "b, ..."}
    assert module.jax2tf_kwargs_map["two"] == {"native_serialization_platforms": ("cpu",), "with_gradient": False}
    assert module.export_version is ExportModelType.TF_SAVEDMODEL
    assert module.model_param_names == {"dense": {"kernel": "dense.kernel", "bias": "dense.bias"}}
    assert kwargs == {"one": None, "two": {"native_serialization_platforms": ("cpu",)}}
    assert len(module.variables) == 2


MAPPING = {"f": affine, "g": double}
SHAPES = {"f": None, "g": None}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"apply_fn": {}}, ValueError, "apply_fn"),
        ({"apply_fn": 3}, TypeError, "apply_fn"),
        ({"apply_fn": {"f": 3}, "input_polymorphic_shape": {"f": None}}, TypeError, r"apply_fn\['f'\]"),
        ({"apply_fn": MAPPING}, ValueError, r"input_polymorphic_shape=None\n.*\['f', 'g'\]"),
        ({"apply_fn": MAPPING, "input_polymorphic_shape": "b, 2"}, ValueError, "input_polymorphic_shape='b, 2'"),
        (
            {"apply_fn": MAPPING, "input_polymorphic_shape": {"f": None, "h": None}},
            ValueError,
            r"input_polymorphic_shape with the keys \['f', 'h'\]\n.*\['f', 'g'\]",
        ),
        (
            {"apply_fn": MAPPING, "input_polymorphic_shape": SHAPES, "jax2tf_kwargs": {"f": {}}},
            ValueError,
            r"jax2tf_kwargs with the keys \['f'\]\n.*\['f', 'g'\]\n"
            r" +do +JaxModule\(\.\.\., jax2tf_kwargs=\{'f': \.\.\., 'g': \.\.\.\}\)$",
        ),
        (
            {"apply_fn": MAPPING, "input_polymorphic_shape": SHAPES, "jit_compile": {"f": True}},
            ValueError,
            r"jit_compile with the keys \['f'\]\n.*\['f', 'g'\]",
        ),
        ({"apply_fn": affine, "jit_compile": {"f": True}}, ValueError, "jit_compile"),
        (
            {"apply_fn": MAPPING, "input_polymorphic_shape": None, "jax2tf_kwargs": {"x": {}}, "jit_compile": {}},
            ValueError,
            "input_polymorphic_shape",
        ),
        (
            {"apply_fn": affine, "jax2tf_kwargs": {"polymorphic_shapes": ["b, 2"]}},
            ValueError,
            r"polymorphic_shapes(.*\n)*.*input_polymorphic_shape",
        ),
        (
            {"apply_fn": affine, "jax2tf_kwargs": {"with_gradient": True}},
            ValueError,
            "with_gradient=True(.*\n)*.*no trainable",
        ),
        (
            {"apply_fn": affine, "trainable": True, "jax2tf_kwargs": {"with_gradient": False}},
            ValueError,
            "with_gradient=False(.*\n)*.*a trainable",
        ),
        ({"apply_fn": affine, "jax2tf_kwargs": {"bogus": 1}}, ValueError, "'bogus'"),
        ({"apply_fn": affine, "jax2tf_kwargs": {"enable_xla": False}}, ValueError, "enable_xla=False"),
        (
            {"apply_fn": affine, "trainable": {"dense": True}},
            ValueError,
            r"structure(.*\n)*.*found.*\n.*expected.*kernel",
        ),
        ({"apply_fn": affine, "trainable": {"dense": {"kernel": 1, "bias": 0}}}, TypeError, "trainable"),
        (
            {
                "apply_fn": affine,
                "allow_multi_axis_sharding_conslidation": True,
                "allow_multi_axis_sharding_consolidation": False,
            },
            ValueError,
            "conslidation=True, allow_multi_axis_sharding_consolidation=False",
        ),
        (
            {"apply_fn": affine, "pspecs": {}},
            ValueError,
            r"pspecs(.*\n)*.*initialize_dtensor.*maybe_enable_dtensor_export_on",
        ),
        (
            {"apply_fn": affine, "export_version": ExportModelType.ORBAX_MODEL},
            NotImplementedError,
            "export_version",
        ),
        (
            {"apply_fn": affine, "jax2obm_kwargs": {"a": 1}},
            NotImplementedError,
            "^jax2obm_kwargs does not apply to a SavedModel$",
        ),
        (
            {"apply_fn": affine, "input_polymorphic_shape_symbol_values": {"b": (1,)}},
            ValueError,
            "input_polymorphic_shape_symbol_values",
        ),
    ],
)
def test_e6_arguments_that_contradict_each_other_are_refused(arguments, kind, message):
    """E6, E7, E26, E31 and their rows of section 8."""
    with pytest.raises(kind, match=message):
        JaxModule(params(), **arguments)


def test_e31_the_format_that_is_not_written_is_named():
    """E31."""
    with pytest.raises(
        NotImplementedError, match=r"^export_version=.*ORBAX_MODEL: plait writes SavedModels only \(TF_SAVEDMODEL\)$"
    ):
        JaxModule(params(), affine, export_version=ExportModelType.ORBAX_MODEL)


def test_e31_the_default_values_of_the_other_format_are_taken():
    """E31."""
    module = JaxModule(params(), affine, jax2obm_kwargs=None, export_version=ExportModelType.TF_SAVEDMODEL)
    assert module.export_version is ExportModelType.TF_SAVEDMODEL


@pytest.mark.parametrize("leaf", [jax.random.key(0), "text", object(), np.array("text")])
def test_a_parameter_that_is_no_array_is_named(leaf):
    with pytest.raises(TypeError, match=r"at +params\['a'\]\['b'\]"):
        JaxModule({"a": {"b": leaf}}, affine)


LEAVES = st.sampled_from([jnp.ones(()), jnp.arange(3), np.ones((2, 1), np.float32), jnp.ones(2, jnp.bfloat16)])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("ab~_.1- é", max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(tree=TREES, data=st.data())
def test_e10_every_leaf_of_any_tree_becomes_the_variable_of_its_path(tree, data):
    """E5, E9, E10, E14: names, values and flags by leaf, and an update to other values."""
    leaves, structure = jax.tree.flatten(tree)
    flags = data.draw(st.lists(st.booleans(), min_size=len(leaves), max_size=len(leaves)))
    module = JaxModule(tree, lambda p, x: x, trainable=jax.tree.unflatten(structure, flags))
    names = jax.tree.leaves(module.model_param_names)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    for variable, name, path, leaf, flag in zip(module.tf_var_leaves, names, paths, leaves, flags, strict=True):
        words = [str(getattr(entry, "key", getattr(entry, "idx", None))) for entry in path]
        expected = ".".join(words).replace("~", "_") or "jax_param_0"
        assert name == variable.name.removesuffix(":0") == expected
        assert variable.trainable is flag
        np.testing.assert_array_equal(variable.numpy(), np.asarray(leaf))
    assert module.with_gradient == any(flags)
    module.update_variables(jax.tree.map(lambda leaf: leaf + np.ones((), leaf.dtype), tree))
    for variable, leaf in zip(module.tf_var_leaves, leaves, strict=True):
        np.testing.assert_array_equal(variable.numpy(), np.asarray(leaf) + np.ones((), leaf.dtype))


@jax.tree_util.register_pytree_node_class
class Pair:
    """A node that gives no key paths."""

    def __init__(self, *both):
        self.both = both

    def tree_flatten(self):
        return self.both, None

    @classmethod
    def tree_unflatten(cls, _, both):
        return cls(*both)


def test_e10_a_tree_without_key_paths_is_numbered_with_a_warning():
    """E10."""
    tree = {"a": jnp.ones(1), "b": Pair(jnp.ones(1), jnp.ones(1))}
    said = "^the parameters have a node without key paths, so their variables are named jax_param_0, jax_param_1, …; "
    with pytest.warns(UserWarning, match=said + "register the node's class with .*register_pytree_with_keys to have"):
        module = JaxModule(tree, lambda p, x: x)
    assert [v.name for v in module.tf_var_leaves] == ["jax_param_0:0", "jax_param_1:0", "jax_param_2:0"]


def test_the_error_is_one_of_plait():
    with pytest.raises(ArgumentError):
        JaxModule(params(), {})
