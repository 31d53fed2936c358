"""Every layer of either library inside the other: the same numbers as by itself, to the last bit, and nothing lost."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import plait
from plait import bridge
from plait.flax.bridge import variables as bv
from tests.conformance.layers import LAYERS as OURS
from tests.flax.bridge.flaxes import LAYERS, plain, same_trees

KEYS = {"params": 0, "dropout": 1}
NO_LAYERS = {
    "Module",  # the base
    "MultiHeadAttention",  # a name of MultiHeadDotProductAttention with another default
    "SelfAttention",  # deprecated
    "RNNCellBase",  # abstract
    "ConvLSTMCell",  # as the other cells, with images
    "Fp8DotGeneral",  # operators inside Dense and Einsum: "Dense in float8" has one
    "Fp8DotGeneralOp",
    "Fp8DirectDotGeneralOp",
    "Fp8Einsum",
    "NANOOFp8DotGeneralOp",
}


def keys():
    return {name: jax.random.key(seed) for name, seed in KEYS.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::plait.errors.NothingSelectedWarning")  # Dropout has no parameters
@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
@pytest.mark.usefixtures("users_promotion")
def test_a_wrapped_layer_is_the_layer(case):
    """B18, B23, B24: initial variables, output, updated collections and gradients are equal; names and dtypes, too."""
    wrapped = bridge.ToNNX(case.module).lazy_init(*case.args, rngs=keys(), **case.kwargs)
    variables = plain(case.module.init(keys(), *case.args, **case.kwargs))
    same_trees(bv.nnx_attrs_to_linen_vars(attributes(wrapped)), variables)

    def loss(params, rest):
        out = case.module.apply({**rest, **params}, *case.args, rngs=keys(), mutable=case.mutable, **case.kwargs)
        out, updates = out if case.mutable else (out, {})
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out)), (out, updates)

    def wrapped_loss(model):
        out = model(*case.args, rngs=keys(), mutable=case.mutable, **case.kwargs)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out)), out

    params = {"params": variables.get("params", {})}
    rest = {name: tree for name, tree in variables.items() if name != "params"}
    grads, (out, updates) = jax.grad(loss, has_aux=True)(params, rest)
    wrapped_grads, wrapped_out = plait.grad(wrapped_loss, has_aux=True)(wrapped)
    same_trees(wrapped_out, out)
    same_trees(bv.nnx_attrs_to_linen_vars(wrapped_grads).get("params", {}), plain(grads["params"]))
    same_trees(bv.nnx_attrs_to_linen_vars(attributes(wrapped)), {**variables, **plain(updates)})


def attributes(model):
    return {name: value for name, value in vars(model).items() if not name.startswith("to_nnx__")}


def test_every_layer_of_linen_has_a_case():
    layers = {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    assert layers - NO_LAYERS - {type(case.module).__name__ for case in LAYERS.values()} == set()


def positional(make):
    return lambda rngs: make(rngs)


@pytest.mark.slow
@pytest.mark.parametrize("case", OURS, ids=lambda case: case.name)
def test_a_layer_of_plait_in_linen_is_the_layer(case):
    """B29, B30, and there and back: with the same keys both sides begin, answer and change alike."""
    seeds = {name: jax.random.key(seed) for name, seed in {"params": 0, "dropout": 1, "default": 2}.items()}
    module = bridge.ToLinen(positional(case.make), same_keys=True)
    model = case.make(plait.Rngs(seeds))
    variables = module.init(seeds, case.x)
    same_trees(variables, bridge.to_collections(model))
    like = plait.eval_shape(lambda: case.make(plait.Rngs(seeds)))
    same_trees(bridge.to_collections(bridge.from_collections(variables, like)), variables)
    out, updates = module.apply(variables, case.x, rngs=seeds, mutable=list(variables))
    same_trees(out, model(case.x))
    same_trees(plain(updates), bridge.to_collections(model))
