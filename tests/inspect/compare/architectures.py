"""Six architectures, written for ``plait`` and for ``flax.nnx`` alike, with switches where implementations differ.

``architectures(nnx)`` makes the classes for one of the two libraries. What a switch may be set to is in ``faults.py``.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, LENGTH, WORDS = 16, 4, 6, 11


def rotary(x, interleaved, base=10_000.0):
    """(batch, length, heads, features)"""
    frequencies = base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = jnp.asarray(np.arange(x.shape[1])[None, :, None, None] * frequencies, x.dtype)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return jnp.stack(turned, -1).reshape(x.shape) if interleaved else jnp.concatenate(turned, -1)


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu by tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


@functools.cache
def architectures(nnx):
    """Name → (class, the shape and kind of its input)."""

    class Attention(nnx.Module):
        """Bidirectional, or causal with ``causal`` steps of the future (0 is the usual mask)."""

        def __init__(self, *, causal=None, rotary=None, use_bias=True, rngs):
            make = functools.partial(nnx.Linear, WIDTH, WIDTH, use_bias=use_bias, rngs=rngs)
            self.query, self.key, self.value, self.out = make(), make(), make(), make()
            self.num_heads = HEADS
            self.causal, self.rotary, self.power = causal, rotary, -0.5
            self.exchanged = False

        def __call__(self, x):
            batch, length, width = x.shape
            q, k, v = (f(x).reshape(batch, length, HEADS, -1) for f in (self.query, self.key, self.value))
            if self.exchanged:
                q, k = k, q
            if self.rotary is not None:
                q, k = (rotary(each, self.rotary == "interleaved") for each in (q, k))
            logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** self.power
            if self.causal is not None:
                mask = np.tri(length, k=self.causal, dtype=bool)[None, None]
                logits = jnp.where(mask, logits, -1e30)
            y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v)
            return self.out(y.reshape(batch, length, width))

    class MLP(nnx.Module):
        def __init__(self, size, hidden, *, rngs):
            self.up, self.down = nnx.Linear(size, hidden, rngs=rngs), nnx.Linear(hidden, size, rngs=rngs)
            self.activation = "gelu by tanh"

        def __call__(self, x):
            return self.down(ACTIVATIONS[self.activation](self.up(x)))

    class GatedMLP(nnx.Module):
        def __init__(self, *, rngs):
            make = functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
            self.gate, self.up, self.down = make(WIDTH, 24), make(WIDTH, 24), make(24, WIDTH)
            self.activation, self.exchanged = "silu", False

        def __call__(self, x):
            gate, up = self.gate(x), self.up(x)
            gate, up = (up, gate) if self.exchanged else (gate, up)
            return self.down(ACTIVATIONS[self.activation](gate) * up)

    class Block(nnx.Module):
        def __init__(self, norm, attention, mlp, *, rngs):
            self.norm1, self.attention = norm(WIDTH, rngs=rngs), attention(rngs=rngs)
            self.norm2, self.mlp = norm(WIDTH, rngs=rngs), mlp(rngs=rngs)
            self.residual, self.before = True, True

        def __call__(self, x):
            if not self.before:  # the order of the first transformers
                x = self.norm1(x + self.attention(x))
                return self.norm2(x + self.mlp(x))
            y = self.attention(self.norm1(x))
            x = x + y if self.residual else y
            return x + self.mlp(self.norm2(x))

    class Encoder(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.positions = nnx.Param(jax.random.normal(rngs.params(), (LENGTH, WIDTH)))
            mlp = lambda rngs: MLP(WIDTH, 32, rngs=rngs)
            self.layers = nnx.List([Block(nnx.LayerNorm, Attention, mlp, rngs=rngs) for _ in range(3)])
            self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, WORDS, rngs=rngs)
            self.factor, self.has_positions = math.sqrt(WIDTH), True

        def __call__(self, tokens):
            x = self.embed(tokens) * self.factor
            if self.has_positions:
                x = x + self.positions[...][None]
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    class Decoder(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            attention = functools.partial(Attention, causal=0, rotary="half", use_bias=False)
            self.layers = nnx.List([Block(nnx.RMSNorm, attention, GatedMLP, rngs=rngs) for _ in range(3)])
            self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
            self.factor = math.sqrt(WIDTH)

        def __call__(self, tokens):
            x = self.embed(tokens) * self.factor
            for layer in self.layers:
                x = layer(x)
            return self.embed.attend(self.norm(x))

    class ConvBlock(nnx.Module):
        def __init__(self, features, *, rngs):
            make = functools.partial(nnx.Conv, features, features, (3, 3), padding="SAME", use_bias=False, rngs=rngs)
            norm = functools.partial(nnx.BatchNorm, features, use_running_average=True, rngs=rngs)
            self.conv1, self.norm1, self.conv2, self.norm2 = make(), norm(), make(), norm()
            self.residual, self.activation = True, "relu"

        def __call__(self, x):
            y = ACTIVATIONS[self.activation](self.norm1(self.conv1(x)))
            y = self.norm2(self.conv2(y))
            return ACTIVATIONS[self.activation](x + y if self.residual else y)

    class ResNet(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 8, (3, 3), padding="SAME", rngs=rngs)
            self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
            self.blocks = nnx.List([ConvBlock(8, rngs=rngs) for _ in range(3)])
            self.hidden, self.head = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 5, rngs=rngs)
            self.activation, self.pooled_by = "relu", "mean"

        def __call__(self, x):
            x = ACTIVATIONS[self.activation](self.norm(self.stem(x)))
            for block in self.blocks:
                x = block(x)
            x = getattr(jnp, self.pooled_by)(x, axis=(1, 2))
            return self.head(jax.nn.relu(self.hidden(x)))

    class Tagger(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
            self.forward = nnx.RNN(nnx.LSTMCell(WIDTH, WIDTH, rngs=rngs), rngs=rngs)
            self.backward = nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=rngs), reverse=True, keep_order=True, rngs=rngs)
            self.norm, self.hidden = nnx.LayerNorm(2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
            self.head = nnx.Linear(WIDTH, 4, rngs=rngs)
            self.activation, self.exchanged = "tanh", False

        def __call__(self, tokens):
            x = self.embed(tokens)
            sides = [self.forward(x), self.backward(x)]
            x = jnp.concatenate(sides[::-1] if self.exchanged else sides, -1)
            return self.head(ACTIVATIONS[self.activation](self.hidden(self.norm(x))))

    class Stage(nnx.Module):
        def __init__(self, inputs, outputs, *, rngs):
            self.conv1 = nnx.Conv(inputs, outputs, (3, 3), padding="SAME", rngs=rngs)
            self.norm1 = nnx.GroupNorm(outputs, num_groups=2, rngs=rngs)
            self.conv2 = nnx.Conv(outputs, outputs, (3, 3), padding="SAME", rngs=rngs)
            self.norm2 = nnx.GroupNorm(outputs, num_groups=2, rngs=rngs)
            self.activation = "silu"

        def __call__(self, x):
            f = ACTIVATIONS[self.activation]
            return f(self.norm2(self.conv2(f(self.norm1(self.conv1(x))))))

    class UNet(nnx.Module):
        def __init__(self, rngs):
            self.first, self.down = Stage(3, 8, rngs=rngs), nnx.Conv(8, 8, (2, 2), strides=2, rngs=rngs)
            self.middle = Stage(8, 8, rngs=rngs)
            self.up, self.last = nnx.ConvTranspose(8, 8, (2, 2), strides=(2, 2), rngs=rngs), Stage(16, 8, rngs=rngs)
            self.head = nnx.Conv(8, 3, (1, 1), rngs=rngs)
            self.has_skip, self.exchanged = True, False

        def __call__(self, x):
            skip = self.first(x)
            y = self.up(self.middle(self.down(skip)))
            parts = [y, skip if self.has_skip else jnp.zeros_like(skip)]
            return self.head(self.last(jnp.concatenate(parts[::-1] if self.exchanged else parts, -1)))

    class MixerBlock(nnx.Module):
        def __init__(self, tokens, *, rngs):
            self.norm1, self.tokens = nnx.LayerNorm(WIDTH, rngs=rngs), MLP(tokens, 12, rngs=rngs)
            self.norm2, self.channels = nnx.LayerNorm(WIDTH, rngs=rngs), MLP(WIDTH, 32, rngs=rngs)
            self.residual = True

        def __call__(self, x):
            y = self.tokens(self.norm1(x).mT).mT
            x = x + y if self.residual else y
            return x + self.channels(self.norm2(x))

    class Mixer(nnx.Module):
        def __init__(self, rngs):
            self.patches = nnx.Conv(3, WIDTH, (2, 2), strides=2, padding="VALID", rngs=rngs)
            self.blocks = nnx.List([MixerBlock(16, rngs=rngs) for _ in range(2)])
            self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, 5, rngs=rngs)
            self.pooled_by = "mean"

        def __call__(self, x):
            x = self.patches(x).reshape(x.shape[0], -1, WIDTH)
            for block in self.blocks:
                x = block(x)
            return self.head(getattr(jnp, self.pooled_by)(self.norm(x), axis=1))

    return {
        "resnet": ResNet, "encoder": Encoder, "decoder": Decoder, "tagger": Tagger, "unet": UNet, "mixer": Mixer,
    }  # fmt: skip


NAMES = ("resnet", "encoder", "decoder", "tagger", "unet", "mixer")


def inputs_of(name, seed=0, batch=3):
    """The input of an architecture, as NumPy makes it."""
    rng = np.random.default_rng(seed)
    if name in ("encoder", "decoder", "tagger"):
        return jnp.asarray(rng.integers(0, WORDS, (batch, LENGTH)), jnp.int32)
    return jnp.asarray(rng.normal(size=(batch, 8, 8, 3)), jnp.float32)


def made(nnx, name, seed=0):
    """A model whose biases, scales and statistics are not those of a new one: faults in those would not show."""
    model = architectures(nnx)[name](nnx.Rngs(seed))
    rng = np.random.default_rng(seed)
    for path, variable in nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat))):
        what, value = path[-1], np.asarray(variable[...])
        if what in ("bias", "mean"):
            value = value + 0.3 * rng.normal(size=value.shape)
        elif what in ("scale", "var"):
            value = value * rng.uniform(0.5, 1.5, value.shape)
        set_value(at(model, path), value)
    return model


def set_value(variable, value):
    old = variable[...]
    variable[...] = jnp.asarray(value, old.dtype)


def at(model, path):
    for key in path:
        model = model[key] if isinstance(key, int) else getattr(model, key)
    return model
