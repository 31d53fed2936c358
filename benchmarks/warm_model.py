"""The model and the training step of ``warm.py``: a small transformer on tokens."""

from __future__ import annotations

from typing import Any

import jax
import optax

import plait

WIDTH, WORDS = 64, 128


class Block(plait.Module):
    def __init__(self, rngs: plait.Rngs) -> None:
        self.norm1 = plait.LayerNorm(WIDTH, rngs=rngs)
        self.attention = plait.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.norm2 = plait.LayerNorm(WIDTH, rngs=rngs)
        self.up = plait.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = plait.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(plait.gelu(self.up(self.norm2(x))))


class Model(plait.Module):
    def __init__(self, blocks: int, rngs: plait.Rngs) -> None:
        self.embed = plait.Embed(WORDS, WIDTH, rngs=rngs)
        self.blocks = plait.List([Block(rngs) for _ in range(blocks)])
        self.norm = plait.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        mask = plait.make_causal_mask(tokens)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


def loss(model: Model, tokens: jax.Array) -> jax.Array:
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def step(model: Model, optimizer: Any, tokens: jax.Array) -> jax.Array:
    value, grads = plait.value_and_grad(loss)(model, tokens)
    optimizer.update(model, grads)
    return value
