"""The byte-level transformer that ``plait demo gpt`` trains, and its sampling."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..core.objects.containers import List
from ..core.objects.module import Module
from ..core.objects.rngs import Rngs
from ..nn.activations import silu
from ..nn.attention import MultiHeadAttention
from ..nn.embedding import Embed
from ..nn.linear import Linear
from ..nn.norm import RMSNorm
from ..nn.rotary import apply_rotary_embedding
from ..surgery.views import view
from ..training.ema import EMA
from ..training.optimizer import Optimizer
from ..transforms.autodiff import value_and_grad
from ..transforms.jit.function import jit
from ..typing import DTypeLike

GRAMS = (2, 3, 4, 6, 8)  # the lengths of byte sequences that have embeddings too
HISTORY = max(GRAMS) - 1  # bytes before the first one that its embedding depends on


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of the model and the length of its training."""

    width: int
    blocks: int
    heads: int
    table: int  # rows of an embedding of several bytes
    length: int  # bytes that it sees at once
    batch: int
    steps: int
    learning_rate: float


SIZES = {
    "small": Size(128, 2, 2, 2**14, 128, 64, 400, 4e-3),
    "medium": Size(512, 8, 8, 2**16, 512, 64, 4_000, 1e-3),
    "large": Size(1024, 16, 16, 2**18, 1024, 64, 10_000, 5e-4),
}


class Block(Module):
    """Attention and a gated hidden layer, each on a normalised input and added to it.

    Shapes:
        x: ``(batch, length, width)``. Returns the same shape.
    """

    def __init__(self, size: Size, dtype: DTypeLike, rngs: Rngs) -> None:
        self.norm1 = RMSNorm(size.width, dtype=dtype, rngs=rngs)
        rotary = functools.partial(apply_rotary_embedding, interleaved=False)
        self.attention = MultiHeadAttention(
            size.heads, size.width, decode=False, use_bias=False, rotary_fn=rotary, dtype=dtype, rngs=rngs
        )
        self.norm2 = RMSNorm(size.width, dtype=dtype, rngs=rngs)
        self.gate = Linear(size.width, 2 * size.width, use_bias=False, dtype=dtype, rngs=rngs)
        self.up = Linear(size.width, 2 * size.width, use_bias=False, dtype=dtype, rngs=rngs)
        self.down = Linear(2 * size.width, size.width, use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), is_causal=True)
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class ByteGPT(Module):
    """A transformer that predicts the next byte.

    The embedding of a byte is its own plus those of the sequences of 2 to 8 bytes that end with it, which are looked up
    by a hash. They cost next to nothing, and a model with few layers cannot compute them itself.

    Shapes:
        text: integers, ``(batch, HISTORY + length)``. Returns logits, ``(batch, length, 256)``, float32.

    Reference: the embeddings are those of Pagnoni et al., "Byte Latent Transformer", 2024, arXiv:2412.09871.
    """

    def __init__(self, size: Size, dtype: DTypeLike, *, rngs: Rngs) -> None:
        init = jax.nn.initializers.normal(0.02)
        self.size = size
        self.one = Embed(256, size.width, dtype=dtype, embedding_init=init, rngs=rngs)
        self.several = List([Embed(size.table, size.width, dtype=dtype, embedding_init=init, rngs=rngs) for _ in GRAMS])
        self.blocks = List([Block(size, dtype, rngs) for _ in range(size.blocks)])
        self.norm = RMSNorm(size.width, dtype=dtype, rngs=rngs)
        self.logits = Linear(size.width, 256, use_bias=False, dtype=dtype, kernel_init=init, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        text = text.astype(jnp.uint32)
        x = self.one(text[:, HISTORY:])
        for grams, table in zip(GRAMS, self.several, strict=True):
            x = x + table(_hashes(text, grams) % self.size.table)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x)).astype(jnp.float32)


def _hashes(text: jax.Array, grams: int) -> jax.Array:
    """A number for the sequence of bytes that ends at each position after the history."""
    length = text.shape[1] - HISTORY
    number = jnp.zeros((text.shape[0], length), jnp.uint32)
    for back in range(grams - 1, -1, -1):
        number = (number ^ text[:, HISTORY - back : HISTORY - back + length]) * jnp.uint32(0x9E3779B1)
        number ^= number >> 15
    return number


def losses_of(model: ByteGPT, text: jax.Array) -> jax.Array:
    """The loss of each byte after the history except the first, in nats: ``(batch, length)``."""
    logits = model(text[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, HISTORY + 1 :].astype(jnp.int32))


@functools.partial(jit, donate=True)
def train_step(model: ByteGPT, optimizer: Optimizer, ema: EMA, text: jax.Array) -> jax.Array:
    """Train on a batch of windows; returns the mean loss before the step, in bits per byte."""
    loss, gradients = value_and_grad(lambda model: losses_of(model, text).mean())(model)
    optimizer.update(model, gradients)
    ema.update(model)
    return loss / math.log(2)


@jit
def _sum_of_second_half(model: ByteGPT, text: jax.Array) -> jax.Array:
    losses = losses_of(model, text)
    return losses[:, losses.shape[1] // 2 :].sum()


def bits_per_byte(model: ByteGPT, text: np.ndarray) -> float:
    """The bits per byte of a text: each byte is predicted from at least half a window of earlier bytes.

    Args:
        text: uint8. Its first half window is only context.
    """
    length, batch = model.size.length, model.size.batch
    half = length // 2
    padded = np.concatenate([np.zeros(HISTORY, np.uint8), text])
    views = np.lib.stride_tricks.sliding_window_view(padded, HISTORY + length + 1)[::half]
    batches = (jnp.asarray(views[at : at + batch]) for at in range(0, len(views), batch))
    total = sum(float(_sum_of_second_half(model, each)) for each in batches)
    return total / (len(views) * (length - half)) / math.log(2)


@jit
def _next_byte(decoder: ByteGPT, text: jax.Array, key: jax.Array, temperature: float) -> jax.Array:
    return jax.random.categorical(key, decoder(text)[0, -1] / temperature)


def written(model: ByteGPT, prompt: bytes, *, count: int, temperature: float = 0.8, seed: int = 0) -> bytes:
    """Let the model continue a text byte by byte, with the keys and values of earlier bytes in a cache.

    When the cache is full, it is refilled with the last half window.

    Args:
        prompt: the text to continue; not empty.
        count: the number of bytes to write.
        temperature: positive; below 1, likely bytes are preferred.
    """
    text = np.frombuffer(bytes(HISTORY) + prompt, np.uint8)
    key = jax.random.key(seed)
    decoder, room = model, 0
    for number in range(count):
        new = 1
        if room == 0:
            new = min(len(text) - HISTORY, model.size.length // 2)
            decoder, room = view(model, decode=True, batch_size=1, max_length=model.size.length), model.size.length
        room -= new
        seen = jnp.asarray(text[None, -HISTORY - new :])
        following = _next_byte(decoder, seen, jax.random.fold_in(key, number), temperature)
        text = np.append(text, np.uint8(following))
    return text[HISTORY:].tobytes()
