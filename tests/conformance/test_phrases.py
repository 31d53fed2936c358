"""What Flax says of a mistake stands in the first line of what plait says: programs and people search for it."""

import jax
import jax.numpy as jnp
import optax
import pytest

import plait

X = jnp.ones((1, 2))


def linear(nnx):
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def twice(f, layer):
    return f(layer, layer)


def written(nnx):
    layer = linear(nnx)
    jax.jit(lambda x: layer.bias.set_value(x))(jnp.ones(2))


def attribute(nnx):
    layer = linear(nnx)
    jax.jit(lambda x: setattr(layer, "other", x))(X)


def drawn(nnx):
    rngs = nnx.Rngs(0)
    jax.jit(lambda x: rngs())(X)


class Shared:
    @staticmethod
    def of(nnx):
        module = linear(nnx)
        module.again = module.kernel
        return module


def taken(nnx):
    layer = linear(nnx)
    layer.h = nnx.Param(jnp.ones(1))
    layer.sow(nnx.Intermediate, "h", 1)


def static(nnx):
    class Marked(nnx.Module):
        def __init__(self):
            self.table = nnx.static(jnp.ones(2))

    Marked()


# The phrase → what raises it, in either library.
PHRASES = {
    "does not support bound methods": lambda nnx: nnx.jit(linear(nnx).__call__),
    "Inconsistent aliasing detected": lambda nnx: twice(nnx.vmap(lambda a, b: 0, in_axes=(0, None)), linear(nnx)),
    "Cannot mutate Param": written,
    "Cannot mutate": attribute,
    "Cannot mutate RngCount": drawn,
    "No RngStream named 'dropout' found": lambda nnx: nnx.Rngs(params=0).dropout(),
    "Invalid rng value": lambda nnx: nnx.Rngs("0"),
    "Expected keyword argument 'values'": lambda nnx: nnx.metrics.Average().update(loss=X),
    "Non-exhaustive filters": lambda nnx: nnx.split(linear(nnx), nnx.BatchStat),
    "`...` or `True` can only be used as the last filters": lambda nnx: nnx.split(linear(nnx), ..., nnx.Param),
    "Expected at least one filter": lambda nnx: nnx.pop(linear(nnx)),
    "Expected a GraphDef": lambda nnx: nnx.merge(3, {}),
    "Found data": static,
    "Cannot set attribute": lambda nnx: setattr(nnx.Param(1.0), "other", 3),
    "Cannot copy from incompatible container": lambda nnx: nnx.Param(1.0).copy_from(nnx.BatchStat(2.0)),
    "Cannot pass a Ref directly": lambda nnx: nnx.Param(jax.new_ref(jnp.ones(1))),
    "Duplicate Param": lambda nnx: nnx.split(Shared.of(nnx), graph=False),
    "found at paths": lambda nnx: nnx.split(Shared.of(nnx), graph=False),
    "Graph nodes are not allowed as prefixes": lambda nnx: nnx.vmap(lambda m: 0, in_axes=(linear(nnx),))(linear(nnx)),
    "Missing required argument `wrt`": lambda nnx: nnx.Optimizer(linear(nnx), optax.sgd(0.1)),
    "No `use_running_average` argument was provided to BatchNorm": lambda nnx: nnx.BatchNorm(
        2, use_running_average=None, rngs=nnx.Rngs(0)
    )(X),
    "Incorrect number of leaves": lambda nnx: nnx.merge(nnx.graphdef(linear(nnx)), {"bias": jnp.ones(2)}),
    "No axis found for": lambda nnx: nnx.vmap(lambda m: 0, in_axes=(nnx.StateAxes({nnx.BatchStat: 0}),))(linear(nnx)),
    "no `rngs` argument was provided to Dropout": lambda nnx: nnx.Dropout(0.5)(X),
    "For multi-class classification": lambda nnx: nnx.metrics.Accuracy().update(
        logits=X, labels=jnp.zeros((1, 2), int)
    ),
    "For binary classification": lambda nnx: nnx.metrics.Accuracy(threshold=0.5).update(
        logits=X, labels=jnp.zeros(1, int)
    ),
    "No `deterministic` argument was provided to Dropout": lambda nnx: nnx.Dropout(0.5, deterministic=None)(X),
    "Autoregressive cache not initialized": lambda nnx: nnx.MultiHeadAttention(1, 2, 2, decode=True, rngs=nnx.Rngs(0))(
        X[None]
    ),
    "Input type must be an integer": lambda nnx: nnx.Embed(3, 2, rngs=nnx.Rngs(0))(jnp.ones(2)),
    "Found multiple Carry definitions": lambda nnx: nnx.scan(lambda a, b: (a, b), in_axes=(nnx.Carry, nnx.Carry))(X, X),
    "If one of in_axes or out_axes has Carry, the other must also have Carry": lambda nnx: nnx.scan(
        lambda a, b: (a, b), in_axes=(nnx.Carry, 0), out_axes=0
    )(X, X),
    "scan got no values to scan over": lambda nnx: nnx.scan(
        lambda a: (a, None), in_axes=(nnx.Carry,), out_axes=(nnx.Carry, 0)
    )(X),
    "Cannot broadcast output state": lambda nnx: nnx.scan(lambda a, b: (a, b), out_axes=(nnx.Carry, None))(X, X),
    "Carry references must be the same between iterations": lambda nnx: nnx.scan(lambda a, b: (linear(nnx), b))(
        linear(nnx), X
    ),
    "Non-hashable static arguments are not supported": lambda nnx: nnx.jit(lambda a, b: 0, static_argnums=1)(X, [1]),
    "Expected 'h' to be of type 'Intermediate'": taken,
    "Could not find at least one instance of the following attributes: ['more', 'other']": lambda nnx: linear(
        nnx
    ).set_attributes(other=1, more=2),
    "Unused keys found in nnx.view: ['other']": lambda nnx: nnx.view(linear(nnx), other=1),
    "Name nothing is not registered": lambda nnx: nnx.variable_type_from_name("nothing"),
}


def raised(trigger, nnx):
    try:
        trigger(nnx)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


pytestmark = pytest.mark.filterwarnings("ignore:sow outside")


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.usefixtures("users_promotion")
def test_the_first_line_holds_the_phrase(phrase):
    assert phrase in str(raised(PHRASES[phrase], plait)).splitlines()[0]


@pytest.mark.oracle
@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.usefixtures("users_promotion")
def test_flax_says_it_too_with_a_class_that_catches_ours(phrase):
    flax_nnx = pytest.importorskip("flax.nnx")
    theirs, ours = raised(PHRASES[phrase], flax_nnx), raised(PHRASES[phrase], plait)
    assert phrase in " ".join(str(theirs).split())
    builtin = next(kind for kind in type(theirs).__mro__ if kind.__module__ == "builtins")
    assert type(theirs).__name__ == type(ours).__name__ or isinstance(ours, builtin)
