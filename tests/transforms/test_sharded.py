"""shard_map over eight devices. (rules X26, X2, X3, U21)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.errors import ArgumentError
from tests.strategies import Node

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


ROWS = P("data")


def sharded(f, in_specs, out_specs=ROWS, **options):
    return plait.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


class Block(plait.Module):
    """Two products; the hidden features can be spread over devices."""

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.up = plait.Param(jax.random.normal(keys[0], (4, 8)))
        self.down = plait.Param(jax.random.normal(keys[1], (8, 3)))

    def __call__(self, x):
        return jnp.tanh(x @ self.up[...]) @ self.down[...]


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.sampled_from([P(), None, P("data"), P(("data", "model"))]),
    st.sampled_from([P(), None]),
    st.integers(1, 3),
)
def test_it_computes_what_the_function_computes_on_the_whole(spec, model_spec, factor):
    """X26: a function of the batch, with the batch on any mesh axes."""
    x = jax.random.normal(jax.random.key(1), (8 * factor, 4))
    block = Block()
    out = sharded(lambda block, x: block(x), (model_spec, spec), spec or P())(block, x)
    np.testing.assert_allclose(out, block(x), rtol=1e-5, atol=1e-6)
    assert out.sharding.is_equivalent_to(NamedSharding(MESH, spec or P()), 2)


def test_a_block_with_its_weights_on_different_devices():
    """X26, X2: one spec for each variable; inside, each device has its part of the weights."""
    shapes = []

    def f(block, x):
        shapes.append((block.up.shape, block.down.shape))
        return jax.lax.psum(block(x), "model")

    specs = plait.StateSharding({plait.PathContains("up"): P(None, "model"), ...: P("model")})
    block, x = Block(), jnp.ones((8, 4))
    out = sharded(f, (specs, P("data")))(block, x)
    np.testing.assert_allclose(out, block(x), rtol=1e-5)
    assert set(shapes) == {((4, 4), (4, 3))}


def test_specs_may_be_a_state():
    """X2: a State whose leaves are the specs."""
    specs = plait.State({"up": P(None, "model"), "down": P("model")})
    block, x = Block(), jnp.ones((8, 4))
    out = sharded(lambda block, x: jax.lax.psum(block(x), "model"), (specs, P("data")))(block, x)
    np.testing.assert_allclose(out, block(x), rtol=1e-5)


@pytest.mark.slow
def test_gradients_go_through():
    def loss(block, x):
        return sharded(lambda block, x: block(x), (P(), P("data")))(block, x).sum()

    block, x = Block(), jnp.ones((8, 4))
    ours = plait.grad(loss)(block, x)
    expected = plait.grad(lambda block, x: block(x).sum())(block, x)
    np.testing.assert_allclose(ours["up"][...], expected["up"][...], rtol=1e-5)


@pytest.mark.slow
def test_batch_statistics_over_all_devices():
    """X26, U19: a mean over the devices may be written to a replicated variable; the rest is left in its layout."""
    norm = plait.BatchNorm(4, axis_name=("data", "model"), rngs=plait.Rngs(0))
    single = plait.BatchNorm(4, rngs=plait.Rngs(0))
    scale = norm.scale.get_raw_value()
    x = jax.random.normal(jax.random.key(0), (16, 4))
    spec = P(("data", "model"))
    out = sharded(lambda norm, x: norm(x), (P(), spec), spec)(norm, x)
    np.testing.assert_allclose(out, single(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.mean, single.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.var, single.var, rtol=1e-5)
    np.testing.assert_array_equal(norm.scale, scale)
    assert norm.scale.get_raw_value().sharding.is_fully_replicated


def test_changes_of_structure_come_back():
    """U15 to U18: new variables go by the spec of what they belong to, and objects stay themselves."""

    def f(model, x):
        model.cache = plait.Cache(jnp.zeros((3,)))
        model.count[...] += 1
        del model.old
        return model, plait.Param(x)

    model = Node(count=plait.BatchStat(jnp.zeros(())), old=plait.Param(jnp.ones(2)))
    count = model.count
    same, param = sharded(f, (P(), P("data")), (P(), P("data")))(model, jnp.arange(8.0))
    assert (same is model, model.count is count, count.item(), hasattr(model, "old")) == (True, True, 1.0, False)
    assert (model.cache.shape, param.tolist()) == ((3,), list(range(8)))
    assert param.get_raw_value().sharding.spec == P("data")


def test_a_compiled_function_shards_once():
    traces = []

    @plait.jit
    @plait.shard_map(mesh=MESH, in_specs=(None, P("data")), out_specs=P("data"))
    def f(block, x):
        traces.append(1)
        block.up[...] *= 2
        return block(x)

    block, x = Block(), jnp.ones((8, 4))
    expected = np.asarray(block.up) * 4
    f(block, x), f(block, x)
    np.testing.assert_allclose(block.up, expected)
    calls = len(traces)
    f(block, x)
    assert len(traces) == calls


def test_only_some_axes_of_the_mesh_may_be_mapped():
    def f(block, x):
        assert x.shape == (2, 4)
        return block(x)

    block, x = Block(), jnp.ones((8, 4))
    np.testing.assert_allclose(sharded(f, (P(), P("data")), axis_names={"data"})(block, x), block(x), rtol=1e-5)


def test_the_mesh_may_be_the_ambient_one():
    block, x = Block(), jnp.ones((8, 4))
    f = plait.shard_map(lambda block, x: block(x), mesh=None, in_specs=(P(), P("data")), out_specs=P("data"))
    with jax.set_mesh(MESH):
        np.testing.assert_allclose(f(block, x), block(x), rtol=1e-5)


def test_keywords_and_lists_of_specs():
    """X1: keyword arguments take their position."""
    block, x = Block(), jnp.ones((8, 4))
    np.testing.assert_allclose(sharded(Block.__call__, [P(), P("data")])(block, x=x), block(x), rtol=1e-5)


def tree():
    return Node(layers=[Node(mean=plait.BatchStat(jnp.zeros(())), w=plait.Param(jnp.ones((6, 4))))])


BAD_SPECS = {
    "no spec": ("model", P(), r"not a partition spec\s+at +in_specs\[0\]\s+found +a str: 'model'"),
    "unknown axis": (P("nope"), P(), r"in_specs names an axis.*at +block\.\w+\s.*'nope' in P.*'data': 4"),
    "unknown axis of the output": (P(), P("nope"), r"out_specs names an axis.*at +out_specs\s.*'nope' in P"),
    "axis that is not mapped": (P("model"), P(), r"in_specs names an axis.*'model' in P.*of the mesh \{'data': 4\}"),
    "twice": (P("data", "data"), P(), r"in_specs shards two axes.*at +block\.\w+\s.*'data' twice"),
    "rank": (P(None, None, "data"), P(), r"in_specs has a spec with more entries.*at +block\.\w+\s.*at most 2"),
    "rank of the output": (P(), P(None, None, "data"), r"out_specs has a spec with more.*at +the output\s.*at most 2"),
    "length": (P(None, "data"), P(), r"in_specs does not match: axis 1.*at +block\.up\s.*multiple of 4"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_specs_that_do_not_fit_are_named_by_path(name):
    """X26."""
    given, out, message = BAD_SPECS[name]
    block = Node(up=plait.Param(jnp.ones((4, 6))))
    with pytest.raises(plait.errors.PlaitError, match=f"(?s){message}"):
        sharded(lambda block: block.up[...], (given,), out, axis_names={"data"})(block)


def test_values_only_with_a_prefix_of_the_module_s_own_structure():
    """X2, U32: without structural updates a tree of specs takes the place of the mapping."""

    def f(block, x):
        block.down[...] *= 2
        block.lost = 1
        return jax.lax.psum(x @ block.up[...] @ block.down[...], "model")

    block, x = Block(), jnp.ones((8, 4))
    specs = plait.prefix(block, {plait.PathContains("up"): P(None, "model"), ...: P("model")})
    expected = x @ block.up[...] @ block.down[...] * 2
    np.testing.assert_allclose(sharded(f, (specs, P("data")), graph_updates=False)(block, x), expected, rtol=1e-5)
    assert not hasattr(block, "lost")
    with pytest.raises(ArgumentError, match="graph_updates=False does not accept a mapping"):
        sharded(f, (plait.StateSharding({...: P()}), P()), graph_updates=False)(block, x)


@pytest.mark.slow
@pytest.mark.oracle
def test_results_and_updates_are_flax_s():
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        model = lib.Linear(4, 8, rngs=lib.Rngs(0))
        specs = lib.StateSharding({lib.PathContains("kernel"): P(None, "model"), ...: P("model")})

        @lib.shard_map(mesh=MESH, in_specs=(specs, P("data")), out_specs=P("data", "model"))
        def f(model, x):
            model.bias[...] += jax.lax.psum(x.sum(), "data")
            return model(x)

        return f(model, jnp.arange(32.0).reshape(8, 4)), model.bias[...]

    for ours, theirs in zip(run(plait), run(nnx), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert ours.sharding == theirs.sharding
