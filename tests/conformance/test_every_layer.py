"""What every layer does alike, over the table of all of them."""

import copy
import functools
import inspect
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait._public import PUBLIC
from plait.errors import ArgumentError, DonatedArrayError, UnusedArgumentWarning
from tests.conformance.layers import LAYERS, NO_LAYERS
from tests.nn.twins import Encoder, pure, some_input
from tests.sampling import slow_but

REFUSING = [case for case in LAYERS if case.refuses is not None]
COSTLY = ("Bidirectional", "GRUCell")  # fast in one property, the comparison of jit and eager
every_layer_fast = pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
every_layer = pytest.mark.parametrize(
    "case", slow_but(lambda case: case.name not in COSTLY, LAYERS), ids=lambda case: case.name
)
every_layer_that_refuses = pytest.mark.parametrize("case", REFUSING, ids=lambda case: case.name)
each_copy = pytest.mark.parametrize("copied", slow_but(["merge"], ["merge", "clone", "deepcopy", "pickle"]))

COPIES = {
    "merge": lambda layer: plait.merge(*plait.split(layer)),
    "clone": plait.clone,
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


def make(case, **dtypes):
    return case.make(plait.Rngs(0), **dtypes)


def forward(model, x):
    return model(x)


def with_dtype(name):
    layers = [case for case in LAYERS if name in case.takes]
    return pytest.mark.parametrize("case", layers, ids=lambda case: case.name)


def test_every_layer_has_a_row():
    homes = {name: home for name, home in PUBLIC.items() if home.startswith("nn.")}
    public = {name for name in homes if isinstance(getattr(plait, name), type)}
    assert public == {name for case in LAYERS for name in (case.name, *case.also)} | NO_LAYERS


@every_layer
def test_a_row_makes_the_layers_that_it_names(case):
    made = {type(module).__name__ for _, module in plait.iter_modules(make(case))}
    assert {case.name, *case.also} <= made


@every_layer
def test_the_names_of_its_state_are_those_of_the_table(case):
    """Checkpoints and conversions go by them."""
    state = plait.to_flat_state(plait.state(make(case), plait.Not(plait.RngState)))
    found = {".".join(map(str, path)): f"{type(leaf).__name__} {leaf.shape}" for path, leaf in state}
    assert found == case.state


# Attributes that are no parameters of the constructor, and hold no variable or module.
OWN_ATTRIBUTES = {
    "Conv": "kernel_shape",
    "ConvTranspose": "kernel_shape",
    "GroupNorm": "feature_axis",
    "LayerNorm": "bias",
    "Linear": "bias",
    "LoRA": "is_merged is_active dropout",
    "MultiHeadAttention": "head_dim cached_key cached_value cache_index",
    "SpectralNorm": "batch_stats",
    "WeightNorm": "scales deterministic",
}


@every_layer_fast
def test_its_attributes_are_the_arguments_of_its_constructor(case):
    """L1: what a constructor only computes with does not become a part of the layer's structure."""
    for _, module in plait.iter_modules(make(case)):
        constructors = [vars(base)["__init__"] for base in type(module).__mro__ if "__init__" in vars(base)]
        known = {name for each in constructors for name in inspect.signature(each).parameters}
        known |= {*OWN_ATTRIBUTES.get(type(module).__name__, "").split()}
        own = {name for name, value in vars(module).items() if not isinstance(value, plait.Variable | plait.Module)}
        assert {name for name in own - known if not name.startswith("_")} == set()


@pytest.mark.sampled
@every_layer_fast
def test_jit_agrees_with_eager_in_output_and_state(case):
    eager, compiled = make(case), make(case)
    step = plait.jit(forward)
    for _ in range(2):  # the second call takes the fast path
        np.testing.assert_allclose(step(compiled, case.x), eager(case.x), rtol=1e-5, atol=1e-5)
    mine, other = pure(plait.state(compiled)), pure(plait.state(eager))
    for path in mine:
        np.testing.assert_allclose(mine[path], other[path], rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in LAYERS if "Cell" not in str(case.refuses)], ids=lambda case: case.name
)
def test_variables_may_be_references(case):
    """V44: but for the cell of an ``RNN``, since a loop cannot carry references."""
    with plait.var_defaults(ref=True):
        layer = make(case)
    usual = make(case)
    for _ in range(2):
        np.testing.assert_array_equal(layer(case.x), usual(case.x))


@pytest.mark.sampled
@every_layer
def test_numpy_inputs_give_what_jax_arrays_give(case):
    np.testing.assert_array_equal(make(case)(np.asarray(case.x)), make(case)(case.x))


@every_layer
def test_equal_constructor_calls_give_one_structure(case):
    assert plait.graphdef(make(case)) is plait.graphdef(make(case))


@pytest.mark.sampled
@each_copy
@every_layer
def test_a_copy_is_the_same_layer_and_shares_nothing(case, copied):
    layer = make(case)
    layer(case.x)  # a state that is not that of the constructor
    again = COPIES[copied](layer)
    if copied != "deepcopy":  # Python copies the jitted functions of JAX, such as jax.nn.sigmoid
        assert plait.graphdef(again) is plait.graphdef(layer)
    mine, other = (dict(plait.to_flat_state(plait.variables(each))) for each in (layer, again))
    assert mine.keys() == other.keys()
    for path in mine:
        assert mine[path] is not other[path], path
        assert jnp.array_equal(mine[path][...], other[path][...]), path
    np.testing.assert_array_equal(again(case.x), layer(case.x))


@every_layer
def test_eval_shape_gives_the_shapes_and_dtypes(case):
    layer = make(case)
    abstract = plait.eval_shape(lambda: make(case))
    described = lambda node: {path: (leaf.shape, leaf.dtype) for path, leaf in plait.to_flat_state(plait.state(node))}
    assert plait.graphdef(abstract) is plait.graphdef(layer)
    assert described(abstract) == described(layer)
    y = plait.eval_shape(forward, abstract, case.x)
    assert (y.shape, y.dtype) == (layer(case.x).shape, layer(case.x).dtype)


@pytest.mark.sampled
@every_layer
def test_a_layer_without_values_names_the_variable_that_lacks_them(case):
    """What ``eval_shape`` has made, and what has been donated, cannot be called."""
    donated = make(case)
    for _, leaf in plait.to_flat_state(plait.state(donated)):
        leaf.get_raw_value().delete()
    for layer, error in ((plait.eval_shape(lambda: make(case)), ArgumentError), (donated, DonatedArrayError)):
        if plait.state(layer):
            with pytest.raises(error, match=r"\n +at +\w"):
                layer(case.x)


@every_layer
def test_a_call_leaks_no_tracer(case):
    layer = make(case)
    with jax.checking_leaks():
        plait.jit(forward)(layer, case.x)


@pytest.mark.sampled
@with_dtype("dtype")
def test_it_computes_in_dtype_and_stores_in_float32(case):
    """L3."""
    layer = make(case, dtype=jnp.bfloat16)
    assert layer(case.x).dtype == case.in_bfloat16
    assert {leaf.dtype for _, leaf in plait.to_flat_state(plait.state(layer, plait.Param))} == {jnp.dtype("float32")}


@pytest.mark.sampled
@with_dtype("param_dtype")
def test_parameters_are_stored_in_param_dtype(case):
    """L4: before and after a call; a float32 input makes the result float32."""
    layer = make(case, param_dtype=jnp.bfloat16)
    y = layer(case.x)
    leaves = plait.to_flat_state(plait.state(layer, plait.Param))
    stored = {leaf.dtype for path, leaf in leaves if "scales" not in path}  # WeightNorm's are float32 in any case
    assert stored == {jnp.dtype(jnp.bfloat16)}
    assert y.dtype == (jnp.float32 if jnp.issubdtype(case.x.dtype, jnp.floating) else jnp.bfloat16)


@every_layer_that_refuses
@pytest.mark.parametrize("run", slow_but([forward], [forward, plait.jit(forward)]), ids=["eager", "jit"])
def test_a_wrong_last_axis_names_the_path_and_both_lengths(case, run):
    below, refusing = case.refuses
    size = case.x.shape[-1]
    wrong = jnp.concatenate([case.x, case.x], -1)
    expected = rf"at +encoder\.layers\[3\]{re.escape(below)} \(an? {refusing or case.name}\)\n  found .*\b{2 * size}\)"
    with pytest.raises(plait.errors.ShapeError, match=expected) as caught:
        run(Encoder(make(case)), wrong)
    assert re.search(rf"\b{size}\b", caught.value.parts["expected"])


ANY_SHAPE = {"PReLU"}  # its slope may have any shape that fits the input


@pytest.mark.parametrize(
    "case", [case for case in LAYERS if "Param" in str(case.state) and case.name not in ANY_SHAPE],
    ids=lambda case: case.name,
)  # fmt: skip
def test_a_population_of_layers_is_not_called_as_one(case):
    """L1: also where the axis of the members is as long as that of the features."""
    for members in {2, case.x.shape[-1], case.x.shape[0]}:
        layer = make(case)
        params = plait.state(layer, plait.Param)
        plait.update(layer, jax.tree.map(lambda value, count=members: jnp.stack([value] * count), params))
        with pytest.raises((ValueError, TypeError, AssertionError, KeyError)):  # most are JAX's own
            layer(case.x)


def first_half(args, *, dtype=None, **_):
    x, *weights = args
    return plait.nn.promotion.promote_dtype((x[..., : x.shape[-1] // 2], *weights), dtype=dtype)


def promotes(case):
    """Whether the layer has a ``promote_dtype`` and checks its input itself."""
    own = case.refuses == ("", "")
    return own and "promote_dtype" in inspect.signature(getattr(plait, case.name).__init__).parameters


@pytest.mark.parametrize("case", [*filter(promotes, LAYERS)], ids=lambda case: case.name)
def test_a_promotion_may_change_the_input(case):
    """L3: what is checked is what it returns."""
    layer, usual = make(case), make(case)
    for _, module in plait.iter_modules(layer):
        if hasattr(module, "promote_dtype"):
            module.promote_dtype = first_half
    np.testing.assert_array_equal(layer(jnp.concatenate([case.x, case.x], -1)), usual(case.x))


@functools.partial(plait.jit, static_argnames="argnums")
def gradients(layer, x, argnums):
    def loss(layer, x):
        y = layer(x)
        return (y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()

    return plait.grad(loss, argnums=argnums)(layer, x)


@pytest.mark.sampled
@every_layer
@pytest.mark.parametrize("value", slow_but([None], [None, 0.0, 1e4]), ids=["drawn", "zeros", "large"])
def test_gradients_are_finite(case, value):
    """Of parameters and of the input, also where a deviation is zero. Not all are zero."""
    layer, x = make(case), case.x
    if value is not None and jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.full_like(x, value)
    argnums = (0, 1) if jnp.issubdtype(x.dtype, jnp.floating) else (0,)
    leaves = jax.tree.leaves(plait.as_pure(gradients(layer, x, argnums)))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert value is not None or any(np.any(leaf) for leaf in leaves)


@pytest.mark.sampled
@every_layer
def test_sharding_metadata_survives(case):
    """Copies, calls, shapes and gradients; ``vmap`` adds the name of its own axis."""
    layer = make(case)
    for path, variable in plait.to_flat_state(plait.variables(layer, plait.Param)):
        variable.set_metadata(out_sharding=tuple(f"{path[-1]}{axis}" for axis in range(variable.ndim)))
    names = lambda node: {
        path: leaf.get_metadata("out_sharding") for path, leaf in plait.to_flat_state(plait.state(node, plait.Param))
    }
    before = names(layer)
    for copied in COPIES.values():
        assert names(copied(layer)) == before
    assert names(plait.eval_shape(lambda: plait.clone(layer))) == before
    plait.jit(forward)(layer, case.x)
    assert names(layer) == before
    if before:
        assert names(plait.eval_shape(plait.grad(lambda layer: layer(case.x).sum()), layer)) == before
    stack = plait.vmap(
        lambda _: plait.clone(layer), transform_metadata={plait.PARTITION_NAME: "stacked"}, axis_size=2, in_axes=None
    )(0)
    assert names(stack) == {path: ("stacked", *axes) for path, axes in before.items()}


@pytest.mark.sampled
@pytest.mark.parametrize("case", [case for case in LAYERS if case.name != "Embed"], ids=lambda case: case.name)
def test_bfloat16_in_gives_float32_parameters_their_due(case):
    """L3: the common type of a bfloat16 input and float32 parameters is float32, under strict promotion too."""
    y = make(case)(case.x.astype(jnp.bfloat16))
    keeps_dtype = case.name in ("Dropout", "PReLU")
    assert y.dtype == (jnp.bfloat16 if keeps_dtype else jnp.float32)


@every_layer
def test_a_layer_works_below_a_module(case):
    np.testing.assert_array_equal(Encoder(make(case))(case.x), make(case)(case.x))


# Axes of an input that may have any length, beside the batch.
LENGTHS = {
    "Conv": (1, 2),
    "ConvTranspose": (1,),
    "Embed": (1,),
    "GroupNorm": (1,),
    "InstanceNorm": (1,),
    "MultiHeadAttention": (1,),
    "SimpleCell": (1,),
    "LSTMCell": (1,),
    "GRUCell": (1,),
    "Bidirectional": (1,),
}


@pytest.mark.slow
@every_layer
def test_one_program_takes_every_size(case):
    """Ask 17: a symbolic batch, and symbolic lengths where they mean something; three sizes of each."""
    axes = (0, *LENGTHS.get(case.name, ()))
    names = [f"n{axis}" if axis in axes else str(size) for axis, size in enumerate(case.x.shape)]
    shape = jax.export.symbolic_shape(", ".join(names))
    layer = make(case)
    graphdef, state = plait.split(layer)

    def forward(state, x):
        return plait.merge(graphdef, state)(x)

    program = jax.export.export(jax.jit(forward))(state, jax.ShapeDtypeStruct(shape, case.x.dtype))
    for size in (2, 3, 7):
        x = case.x
        for axis in axes:
            x = jnp.take(x, jnp.arange(size + axis) % x.shape[axis], axis=axis)
        expected = jax.jit(forward)(state, x)
        np.testing.assert_allclose(program.call(state, x), expected, rtol=1e-5, atol=1e-5)


def test_a_failure_with_a_symbolic_size_names_the_layer():
    """Ask 17: the layer's path, what it found and what it takes."""
    model = Encoder(plait.Linear(3, 4, rngs=plait.Rngs(0)))
    shape = jax.export.symbolic_shape("batch, features")
    with pytest.raises(plait.errors.ShapeError, match=r"(?s)encoder\.layers\[3\] \(a Linear\).*features.*3"):
        jax.export.export(jax.jit(lambda x: model(x)))(jax.ShapeDtypeStruct(shape, jnp.float32))


class Scaled(plait.Module):
    """A layer with a keyword."""

    def __init__(self):
        self.linear = plait.Linear(3, 3, rngs=plait.Rngs(0))

    def __call__(self, x, *, scale=1.0):
        return self.linear(x) * scale


def edited(edit):
    def wrap(layer):
        edit(plait.select(layer, plait.Linear))
        return layer

    return wrap


# Ways to call a layer through something else.
THROUGH = {
    "Sequential": lambda layer: plait.Sequential(jnp.negative, layer, jnp.negative),
    "a nested Sequential": lambda layer: plait.Sequential(jnp.negative, plait.Sequential(layer), jnp.negative),
    "Stack": lambda layer: plait.Stack([layer]),
    "a recomputed Stack": lambda layer: plait.Stack([layer], remat=True),
    "LoRA": lambda layer: plait.LoRA(3, 2, 3, base_module=layer, rngs=plait.Rngs(0)),
    "WeightNorm": lambda layer: plait.WeightNorm(layer, feature_axes=None, variable_filter=False, rngs=plait.Rngs(0)),
    "add_lora": edited(lambda linears: plait.add_lora(linears, 2, rngs=plait.Rngs(0))),
    "quantize": edited(lambda linears: plait.quantize(linears, bits=8)),
    "view": plait.view,
    "remat": plait.remat,
}


@pytest.mark.parametrize("through", THROUGH.values(), ids=THROUGH)
def test_a_keyword_arrives(through):
    """What calls a layer for its user hands its keywords on."""
    x = some_input(2, 3)
    layer = through(Scaled())
    np.testing.assert_allclose(layer(x, scale=2.0), 2 * layer(x), rtol=1e-6)


UNKNOWN = {
    **{case.name: case.make for case in LAYERS},
    **{name: lambda rngs, through=through: through(Scaled()) for name, through in THROUGH.items()},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_keyword_is_swallowed(name):
    """G65: a keyword that nothing takes is an error, or a warning where a layer offers it to others."""
    x = next((case.x for case in LAYERS if case.name == name), some_input(2, 3))
    layer = UNKNOWN[name](plait.Rngs(0))
    with pytest.raises((TypeError, UnusedArgumentWarning), match="determinstic"):
        layer(x, determinstic=True)


def on_a_mesh(kind, run):
    """The output for an input whose batch is on two devices, with axes of this type."""

    def output(layer, x):
        mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,), devices=jax.devices()[:2])
        with jax.set_mesh(mesh):
            return run(mesh, layer, jax.device_put(x, jax.NamedSharding(mesh, jax.P("data"))))

    return output


def in_shards(mesh, layer, x):
    return plait.shard_map(forward, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P("data"))(layer, x)


MESHES = {
    "automatic": on_a_mesh(jax.sharding.AxisType.Auto, lambda _, layer, x: plait.jit(forward)(layer, x)),
    "explicit": on_a_mesh(jax.sharding.AxisType.Explicit, lambda _, layer, x: forward(layer, x)),
    "explicit, jitted": on_a_mesh(jax.sharding.AxisType.Explicit, lambda _, layer, x: plait.jit(forward)(layer, x)),
    "manual": on_a_mesh(jax.sharding.AxisType.Auto, in_shards),
}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@every_layer
def test_a_mesh_gives_the_numbers_of_one_device(case, mesh):
    """In evaluation where axes are manual: there, each shard has its own statistics and the same dropout."""
    sharded, single = make(case), make(case)
    if mesh == "manual":
        sharded.eval()
        single.eval()
    x = jnp.concatenate([case.x, case.x], 0)
    np.testing.assert_allclose(MESHES[mesh](sharded, x), single(x), rtol=1e-4, atol=1e-5)
