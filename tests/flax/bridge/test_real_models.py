"""Legacy Linen models in a training loop of plait, step for step with the same loop in Linen alone."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait import bridge
from tests.flax.bridge.flaxes import plain, same_trees

STEPS = 10


class TransformerBlock(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x, mask, train):
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=0.1, deterministic=not train)(y, mask=mask)
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class Transformer(nn.Module):
    """A small language model, with axis names on its embedding."""

    vocabulary: int = 11
    features: int = 8

    @nn.compact
    def __call__(self, ids, train):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocab", "embed"))
        embed = nn.Embed(self.vocabulary, self.features, embedding_init=init)
        x = embed(ids) + self.param("positions", nn.initializers.normal(0.02), (1, ids.shape[1], self.features))
        for _ in range(2):
            x = TransformerBlock()(x, nn.make_causal_mask(ids), train)
        return embed.attend(nn.LayerNorm()(x))


class ResidualBlock(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        strides = (self.stride, self.stride)
        y = nn.Conv(self.features, (3, 3), strides, use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=not train)(y))
        y = nn.Conv(self.features, (3, 3), use_bias=False)(y)
        y = nn.BatchNorm(use_running_average=not train, scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = nn.BatchNorm(use_running_average=not train)(nn.Conv(self.features, (1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(4, (3, 3))(x)))
        for features, stride in ((4, 1), (6, 2)):
            x = ResidualBlock(features, stride)(x, train)
        return nn.Dense(3)(x.mean((1, 2)))


RANDOM = np.random.default_rng(0)
MODELS = {
    "transformer": (
        Transformer(),
        RANDOM.integers(0, 11, (STEPS, 2, 6)).astype(np.int32),
        RANDOM.integers(0, 11, (STEPS, 2, 6)).astype(np.int32),
    ),
    "resnet": (
        ResNet(),
        RANDOM.normal(size=(STEPS, 4, 8, 8, 3)).astype(np.float32),
        RANDOM.integers(0, 3, (STEPS, 4)).astype(np.int32),
    ),
}


def keys(step):
    return {"params": jax.random.key(0), "dropout": jax.random.fold_in(jax.random.key(1), step)}


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def trained_in_linen(module, inputs, labels):
    variables = plain(module.init(keys(0), inputs[0], True))
    params = {"params": variables.pop("params")}
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    losses = []

    @jax.jit
    def step(params, rest, state, x, y, number):
        def loss(params):
            out, updates = module.apply({**params, **rest}, x, True, rngs=keys(number), mutable=["batch_stats"])
            return cross_entropy(out, y), updates

        (value, updates), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), {**rest, **updates}, state, value

    for number, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        params, variables, state, value = step(params, variables, state, x, y, number)
        losses.append(value)
    return losses, {**params, **plain(variables)}


def trained_in_plait(module, inputs, labels):
    model = bridge.ToNNX(module).lazy_init(inputs[0], True, rngs=keys(0))
    optimizer = plait.Optimizer(model, optax.adam(1e-2), wrt=plait.Param)
    losses = []

    @plait.jit
    def step(model, optimizer, x, y, number):
        def loss(model):
            return cross_entropy(model(x, True, rngs=keys(number), mutable=["batch_stats"]), y)

        value, grads = plait.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    for number, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        losses.append(step(model, optimizer, x, y, number))
    attrs = {name: value for name, value in vars(model).items() if not name.startswith("to_nnx__")}
    return losses, bridge.nnx_attrs_to_linen_vars(attrs)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.usefixtures("users_promotion")
@pytest.mark.parametrize(("module", "inputs", "labels"), MODELS.values(), ids=MODELS)
def test_ten_steps_are_the_ten_steps_of_linen(module, inputs, labels):
    """Same losses, parameters, statistics and boxes after ten steps of Adam, to the last bit."""
    losses, variables = trained_in_linen(module, inputs, labels)
    plait_losses, plait_variables = trained_in_plait(module, inputs, labels)
    np.testing.assert_array_equal(np.asarray(plait_losses), np.asarray(losses))
    same_trees(plait_variables, variables)
    assert losses[0] != losses[-1]
    assert jnp.isfinite(jnp.asarray(losses)).all()
