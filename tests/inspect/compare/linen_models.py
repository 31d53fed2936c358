"""Two of the architectures in Linen, with the weights of a plait model."""

import math

import jax
import jax.numpy as jnp
import pytest

import plait

nn = pytest.importorskip("flax.linen")

from tests.inspect.compare.architectures import HEADS, LENGTH, WIDTH, WORDS  # noqa: E402


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        q, k, v = (nn.DenseGeneral((HEADS, WIDTH // HEADS), name=name)(x) for name in ("query", "key", "value"))
        return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out")(nn.dot_product_attention(q, k, v))


class EncoderLayer(nn.Module):
    @nn.compact
    def __call__(self, x):
        norm = lambda name: nn.LayerNorm(epsilon=1e-6, name=name)
        x = x + Attention(name="self_attention")(norm("ln_1")(x))
        y = nn.gelu(nn.Dense(32, name="fc1")(norm("ln_2")(x)))
        return x + nn.Dense(WIDTH, name="fc2")(y)


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        positions = self.param("positions", nn.initializers.zeros, (LENGTH, WIDTH))
        x = nn.Embed(WORDS, WIDTH, name="embed")(tokens) * math.sqrt(WIDTH) + positions[None]
        for n in range(3):
            x = EncoderLayer(name=f"layer_{n}")(x)
        return nn.Dense(WORDS, name="head")(nn.LayerNorm(epsilon=1e-6, name="norm")(x))


class ConvBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        conv = lambda name: nn.Conv(8, (3, 3), use_bias=False, name=name)
        norm = lambda name: nn.BatchNorm(use_running_average=True, name=name)
        y = nn.relu(norm("norm1")(conv("conv1")(x)))
        return nn.relu(x + norm("norm2")(conv("conv2")(y)))


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(use_running_average=True, name="norm")(nn.Conv(8, (3, 3), name="stem")(x)))
        for n in range(3):
            x = ConvBlock(name=f"blocks_{n}")(x)
        return nn.Dense(5, name="head")(nn.relu(nn.Dense(8, name="hidden")(x.mean((1, 2)))))


_WORDS = {
    "encoder": (Encoder, {"attention": "self_attention", "norm1": "ln_1", "norm2": "ln_2", "up": "fc1", "down": "fc2"}),
    "resnet": (ResNet, {}),
}
NAMES = tuple(_WORDS)


def linen_model(name, model, x):
    """The Linen module, and variables with the weights of a plait model."""
    cls, words = _WORDS[name]
    module = cls()
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    flat = dict(plait.to_flat_state(plait.state(model)))
    values = {}
    for path, leaf in flat.items():
        path = [words.get(key, key) for key in path if key != "mlp"]
        if isinstance(path[0], str) and len(path) > 1 and isinstance(path[1], int):
            path[:2] = [f"{path[0].removesuffix('s') if name == 'encoder' else path[0]}_{path[1]}"]
        values[tuple(path)] = leaf

    def value(path, shape):
        leaf = values[tuple(entry.key for entry in path[1:])]
        return jnp.asarray(leaf[...]).reshape(shape.shape)

    return module, jax.tree_util.tree_map_with_path(value, shapes)
