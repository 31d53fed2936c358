"""Plait and Linen modules inside a ``bridge.Module``."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError
from tests.flax.bridge.flaxes import same_trees

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)


def block(rngs):
    named = plait.with_partitioning(plait.initializers.lecun_normal(), ("in", "out"))
    return plait.Dict(
        dense=plait.Linear(2, 2, rngs=rngs, kernel_init=named),
        norm=plait.BatchNorm(2, rngs=rngs),
        drop=plait.Dropout(0.5, rngs=rngs),
    )


class Compact(bridge.Module):
    @bridge.compact
    def __call__(self, x, train=False):
        parts = bridge.nnx_in_bridge_mdl(block, name="block")
        if not train:
            parts.eval()
        x = parts.drop(parts.norm(parts.dense(x)))
        x = bridge.nnx_in_bridge_mdl(lambda rngs: plait.Linear(2, 3, rngs=rngs))(x)
        x = bridge.linen_in_bridge_mdl(nn.Dense(4))(x)
        return bridge.linen_in_bridge_mdl(nn.BatchNorm(use_running_average=not train), name="out")(x)


class Setup(bridge.Module):
    def setup(self):
        self.block = bridge.nnx_in_bridge_mdl(block)
        self.many = [bridge.nnx_in_bridge_mdl(lambda rngs: plait.Linear(2, 3, rngs=rngs))]
        self.head = bridge.linen_in_bridge_mdl(nn.Dense(4))

    def __call__(self, x):
        return self.head(self.many[0](self.block.dense(x)))


def test_children_of_both_kinds_are_made_at_init_and_filled_at_apply():
    """B36: in a compact method; names by class or given, metadata and statistics included."""
    out, variables = Compact().init_with_output({"params": 0, "default": 1}, X)
    assert sorted(variables["params"]) == ["Dense_0", "Linear_0", "block", "out"]
    assert variables["params"]["block"]["dense"]["kernel"].metadata["out_sharding"] == ("in", "out")
    assert sorted(variables["batch_stats"]) == ["block", "out"]
    same_trees(Compact().apply(variables, X), out)
    _, updates = Compact().apply(variables, X, train=True, rngs={"dropout": 1}, mutable=["batch_stats"])
    assert list(updates) == ["batch_stats"]
    assert not np.array_equal(updates["batch_stats"]["out"]["mean"], np.zeros(4))
    assert not np.array_equal(updates["batch_stats"]["block"]["norm"]["mean"], np.zeros(2))


def test_a_linen_child_follows_the_mutable_collections_around_it():
    """B24: those of the bridge.Module; without them its statistics are Linen's own error."""
    variables = Compact().init({"params": 0, "default": 1}, X)
    with pytest.raises(Exception, match='"batch_stats" is immutable'):
        Compact().apply(variables, X, train=True, rngs={"dropout": 1})


def test_a_linen_child_knows_whether_init_runs():
    """B36: as inside Linen, where statistics do not move during init."""
    seen = []

    class Asks(nn.Module):
        @nn.compact
        def __call__(self, x):
            seen.append(self.is_initializing())
            return nn.BatchNorm(use_running_average=False)(x)

    class Net(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            return bridge.linen_in_bridge_mdl(Asks(), name="asks")(x)

    variables = Net().init(0, X)
    same_trees(variables["batch_stats"]["asks"], Asks().init(jax.random.key(0), X)["batch_stats"])
    Net().apply(variables, X, mutable=["batch_stats"])
    assert seen == [True, True, False]


def test_children_are_made_in_setup_too():
    """B36: the attribute names them, also inside containers."""
    out, variables = Setup().init_with_output(0, X)
    assert sorted(variables["params"]) == ["block", "head", "many"]
    same_trees(Setup().apply(variables, X), out)
    same_trees(jax.jit(Setup().apply)(variables, X).shape, out.shape)


def test_apply_runs_factories_on_shapes_only():
    """B36."""
    concrete = []

    def init(key, shape, dtype):
        concrete.append(not isinstance(key, jax.core.Tracer))
        return jnp.ones(shape, dtype)

    class Model(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            return bridge.nnx_in_bridge_mdl(lambda rngs: plait.Linear(2, 3, rngs=rngs, kernel_init=init))(x)

    Model().apply(Model().init(0, X), X)
    assert concrete == [True, False]


def test_initialization_reaches_linen_children_once():
    """B23: a shared Linen child keeps what its first call made."""

    class Twice(bridge.Module):
        @bridge.compact
        def __call__(self, x):
            dense = bridge.linen_in_bridge_mdl(nn.Dense(2))
            return dense(dense(x))

    out, variables = Twice().init_with_output(0, X)
    same_trees(Twice().apply(variables, X), out)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: bridge.nnx_in_bridge_mdl(block), "nnx_in_bridge_mdl"),
        (lambda: bridge.linen_in_bridge_mdl(nn.Dense(2)), "linen_in_bridge_mdl"),
    ],
)
def test_children_are_made_while_a_bridge_module_runs(make, named):
    with pytest.raises(ArgumentError, match=rf"{named} makes a submodule"):
        make()


def test_variables_that_do_not_fit_are_told():
    variables = Setup().init(0, X)
    for change, named in (
        (lambda params: params.update(many={1: params["many"][0]}), r"Setup, a Linear, (bias|kernel)\n"),
        (lambda params: params.update(block={"dense": 3}), r"do not fit the module\n +at +|Setup, a Dict, "),
    ):
        changed = {**variables, "params": dict(variables["params"])}
        change(changed["params"])
        with pytest.raises(ArgumentError, match=named):
            Setup().apply(changed, X)


class Draws(plait.Module):
    """Keeps the streams that it is given."""

    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self):
        return jax.random.key_data(self.rngs.dropout())


def test_children_share_the_streams_of_apply_as_those_of_init():
    """B36: no two children draw the same key."""

    class Net(bridge.Module):
        def setup(self):
            self.first, self.second = bridge.nnx_in_bridge_mdl(Draws), bridge.nnx_in_bridge_mdl(Draws)

        @bridge.compact
        def __call__(self):
            third = bridge.nnx_in_bridge_mdl(Draws, name="third")
            own = jax.random.key_data(self.make_rng("dropout"))
            return jnp.stack([self.first(), self.second(), third(), self.first(), own])

    keys = Net().init_with_output({"dropout": 2})[0]
    assert len(np.unique(np.asarray(keys), axis=0)) == 5
    same_trees(Net().apply({}, rngs={"dropout": 2}), keys)
    same_trees(jax.jit(lambda key: Net().apply({}, rngs={"dropout": key}))(jax.random.key(2)), keys)


def test_draws_inside_of_a_transform_advance_the_streams_too():
    def stack(rngs):
        return plait.jit(lambda rngs: plait.Dict(w=plait.Param(rngs.dropout.uniform())))(rngs)

    class Net(bridge.Module):
        @bridge.compact
        def __call__(self):
            bridge.nnx_in_bridge_mdl(stack, name="stack")
            return jax.random.key_data(self.make_rng("dropout"))

    out, variables = Net().init_with_output({"dropout": 2})
    same_trees(Net().apply(variables, rngs={"dropout": 2}), out)


@pytest.mark.oracle
@pytest.mark.parametrize("rngs", [{"dropout": 2}, {"params": 3, "dropout": 2}, {"default": 2}, 5], ids=str)
def test_dropout_masks_in_apply_are_those_of_flax(rngs):
    """B36: the streams of ``apply`` are passed to the factories."""
    flax_nnx = pytest.importorskip("flax.nnx")

    def masks(nnx):
        class Net(nnx.bridge.Module):
            @nnx.bridge.compact
            def __call__(self, x):
                drops = [nnx.bridge.nnx_in_bridge_mdl(lambda r: nnx.Dropout(0.5, rngs=r)) for _ in range(2)]
                return [drop(x) for drop in drops], jax.random.key_data(self.make_rng("dropout"))

        return Net().apply({}, jnp.ones(8), rngs=rngs)

    same_trees(masks(plait), masks(flax_nnx))


class Noise(plait.Module):
    """Draws a key of a stream in each call."""

    def __init__(self, *, rngs):
        self.stream = rngs["noise"].fork()

    def __call__(self, x):
        return x + jax.random.uniform(self.stream(), x.shape)


class LinenNoise(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + jax.random.uniform(self.make_rng("noise"), x.shape)


class WithLinen(plait.Module):
    def __init__(self, *, rngs):
        self.inner = bridge.ToNNX(LinenNoise(), rngs)

    def __call__(self, x):
        return self.inner(x)


class InLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return bridge.to_linen(Noise)(x)


class InBridge(bridge.Module):
    @bridge.compact
    def __call__(self, x):
        return bridge.nnx_in_bridge_mdl(lambda rngs: Noise(rngs=rngs))(x)


class LinenInBridge(bridge.Module):
    @bridge.compact
    def __call__(self, x):
        return bridge.linen_in_bridge_mdl(LinenNoise())(x)


class BridgeNoise(bridge.Module):
    @bridge.compact
    def __call__(self, x):
        return x + jax.random.uniform(self.make_rng("noise"), x.shape)


DRAWING = {
    "linen": LinenNoise,
    "to_linen": lambda: bridge.to_linen(Noise),
    "to_linen same_keys": lambda: bridge.to_linen(Noise, same_keys=True),
    "to_linen concrete": lambda: bridge.to_linen(Noise, abstract_init=False),
    "to_linen nested": InLinen,
    "to_linen of ToNNX": lambda: bridge.to_linen(WithLinen),
    "bridge.Module": BridgeNoise,
    "nnx_in_bridge_mdl": InBridge,
    "linen_in_bridge_mdl": LinenInBridge,
}
STREAMS = {
    "one key": lambda seed: jax.random.key(seed),
    "params": lambda seed: {"params": jax.random.key(seed)},
    "its own": lambda seed: {"noise": jax.random.key(seed)},
    "params and another": lambda seed: {"params": jax.random.key(seed), "dropout": jax.random.key(0)},
}


@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING)
def test_what_a_call_draws_depends_on_its_keys(make, streams):
    """B28, B32: by the name of the stream, or else by ``params``, as in Linen."""
    model, x = make(), jnp.zeros(8)
    variables = model.init(jax.random.key(0), x)
    first, again, other = (model.apply(variables, x, rngs=streams(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_streams_given_to_a_bridge_module_draw_anew_in_each_call():
    """B32: also where only ``params`` can give the keys."""
    model, x, rngs = InBridge(), jnp.zeros(8), plait.Rngs(params=0)
    assert (model.apply({}, x, rngs=rngs) != model.apply({}, x, rngs=rngs)).any()


@pytest.mark.parametrize("streams", [STREAMS["one key"], STREAMS["params"]], ids=["one key", "params"])
@pytest.mark.parametrize("split", [{"params": True}, {"params": True, "noise": True}, {"params": False}], ids=str)
@pytest.mark.parametrize("make", [LinenNoise, lambda: bridge.to_linen(Noise)], ids=["linen", "to_linen"])
def test_the_examples_of_a_lifted_vmap_draw_their_own_if_the_keys_are_split(make, split, streams):
    """B28: as of a Linen module."""

    class Batched(nn.Module):
        @nn.compact
        def __call__(self, x):
            call = nn.vmap(lambda module, x: module(x), split_rngs=split, in_axes=0)
            return call(make(), x)

    a, b = Batched().apply({}, jnp.zeros((2, 8)), rngs=streams(1))
    assert (a != b).any() == split["params"]
