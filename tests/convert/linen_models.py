"""A residual network, a transformer and recurrent cells, each in Linen and in plait."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

import plait

IMAGES = np.random.default_rng(2).normal(size=(2, 8, 8, 3)).astype(np.float32)
TOKENS = np.random.default_rng(0).integers(0, 17, (3, 7))
FEATURES = np.random.default_rng(1).normal(size=(3, 7, 8)).astype(np.float32)


class LinenBlock(nn.Module):
    features: int
    strides: int = 1

    @nn.compact
    def __call__(self, x, train):
        norm = lambda: nn.BatchNorm(use_running_average=not train)
        y = nn.Conv(self.features, (3, 3), self.strides, use_bias=False)(x)
        y = nn.relu(norm()(y))
        y = norm()(nn.Conv(self.features, (3, 3), use_bias=False)(y))
        if self.strides != 1:
            x = nn.Conv(self.features, (1, 1), self.strides, name="shortcut")(x)
        return nn.relu(x + y)


class LinenResNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(4, (3, 3), name="stem")(x)
        x = LinenBlock(4)(x, train)
        x = LinenBlock(8, 2)(x, train)
        return nn.Dense(5)(nn.GroupNorm(2)(x).mean((1, 2)))


class Block(plait.Module):
    def __init__(self, features_in, features, strides=1, *, rngs):
        self.conv1 = plait.Conv(features_in, features, (3, 3), strides, use_bias=False, rngs=rngs)
        self.norm1 = plait.BatchNorm(features, use_running_average=True, rngs=rngs)
        self.conv2 = plait.Conv(features, features, (3, 3), use_bias=False, rngs=rngs)
        self.norm2 = plait.BatchNorm(features, use_running_average=True, rngs=rngs)
        self.shortcut = plait.Conv(features_in, features, (1, 1), strides, rngs=rngs) if strides != 1 else None

    def __call__(self, x):
        y = self.norm2(self.conv2(plait.relu(self.norm1(self.conv1(x)))))
        return plait.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(plait.Module):
    def __init__(self, rngs):
        self.stem = plait.Conv(3, 4, (3, 3), rngs=rngs)
        self.blocks = [Block(4, 4, rngs=rngs), Block(4, 8, 2, rngs=rngs)]
        self.norm = plait.GroupNorm(8, num_groups=2, rngs=rngs)
        self.head = plait.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean((1, 2)))


RESNET_NAMES = {
    "*.LinenBlock_*.Conv_0": "*.blocks.*.conv1",
    "*.LinenBlock_*.Conv_1": "*.blocks.*.conv2",
    "*.LinenBlock_*.BatchNorm_0": "*.blocks.*.norm1",
    "*.LinenBlock_*.BatchNorm_1": "*.blocks.*.norm2",
    "*.LinenBlock_*": "*.blocks.*",
    "*.GroupNorm_0": "*.norm",
    "*.Dense_0": "*.head",
}


class LinenTransformer(nn.Module):
    """Its names are those of the model below, so that no map is needed."""

    def setup(self):
        self.embed = nn.Embed(17, 8)
        self.attn = nn.MultiHeadDotProductAttention(2, qkv_features=8, out_features=8)
        self.ln1, self.ln2 = nn.LayerNorm(), nn.RMSNorm()
        self.up, self.down = nn.Dense(16), nn.Dense(8)
        self.positions = self.param("positions", nn.initializers.normal(1.0), (7, 8))

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions
        mask = nn.make_causal_mask(tokens)
        x = x + self.attn(self.ln1(x), mask=mask)
        x = x + self.down(nn.gelu(self.up(self.ln2(x))))
        return self.embed.attend(x)


class Transformer(plait.Module):
    def __init__(self, rngs):
        self.embed = plait.Embed(17, 8, rngs=rngs)
        self.attn = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.ln1, self.ln2 = plait.LayerNorm(8, rngs=rngs), plait.RMSNorm(8, rngs=rngs)
        self.up, self.down = plait.Linear(8, 16, rngs=rngs), plait.Linear(16, 8, rngs=rngs)
        self.positions = plait.Param(jnp.zeros((7, 8)))

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions[...]
        x = x + self.attn(self.ln1(x), mask=plait.make_causal_mask(tokens))
        x = x + self.down(plait.gelu(self.up(self.ln2(x))))
        return self.embed.attend(x)


def linen_recurrent(cell):
    return nn.RNN(cell(6))


def recurrent(cell, rngs):
    return plait.RNN(cell(8, 6, rngs=rngs), rngs=rngs)


def perturbed(variables, rng):
    """The variables with numbers that no initializer gives; variances stay positive."""

    def change(path, leaf):
        noise = rng.normal(size=leaf.shape).astype(np.float32) / 4
        return np.asarray(leaf) + (np.abs(noise) if path[-1] == "var" else noise)

    def walk(tree, path):
        if hasattr(tree, "items"):
            return {key: walk(value, (*path, key)) for key, value in tree.items()}
        return change(path, tree)

    return walk(variables, ())
