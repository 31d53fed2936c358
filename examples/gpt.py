"""Train a small GPT on Python's own standard library, and let it write.

    python examples/gpt.py --steps 2000 --width 256 --blocks 4

It reads bytes, so there is no tokenizer. Every machine that has Python has the data.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plait


class Block(plait.Module):
    """Causal attention and a hidden layer, each on a normalised input and added to it."""

    def __init__(self, width: int, heads: int, *, rngs: plait.Rngs):
        rotary = functools.partial(plait.apply_rotary_embedding, interleaved=False)
        self.norm1 = plait.RMSNorm(width, rngs=rngs)
        self.attention = plait.MultiHeadAttention(
            heads, width, use_bias=False, decode=False, rotary_fn=rotary, rngs=rngs
        )
        self.norm2 = plait.RMSNorm(width, rngs=rngs)
        self.up = plait.Linear(width, 4 * width, rngs=rngs)
        self.down = plait.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), is_causal=True)
        return x + self.down(plait.gelu(self.up(self.norm2(x))))


class GPT(plait.Module):
    """Predicts the next byte. ``(batch, length)`` of integers → logits ``(batch, length, 256)``."""

    def __init__(self, width: int, heads: int, blocks: int, *, rngs: plait.Rngs):
        init = plait.initializers.normal(0.02)
        self.embed = plait.Embed(256, width, embedding_init=init, rngs=rngs)
        self.blocks = [Block(width, heads, rngs=rngs) for _ in range(blocks)]
        self.norm = plait.RMSNorm(width, rngs=rngs)
        self.logits = plait.Linear(width, 256, use_bias=False, kernel_init=init, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.embed(text)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def corpus(bytes_: int) -> np.ndarray:
    """The first bytes of the standard library's modules, concatenated in alphabetical order."""
    text = bytearray()
    for file in sorted(Path(os.__file__).parent.glob("*.py")):
        text += file.read_bytes()
        if len(text) >= bytes_:
            break
    return np.frombuffer(bytes(text[:bytes_]), np.uint8).astype(np.int32)


def sample_batch(text: np.ndarray, batch: int, length: int, random: np.random.Generator) -> jax.Array:
    """Random pieces of the text, one byte longer than ``length``: the last is only predicted."""
    starts = random.integers(0, len(text) - length - 1, batch)
    return jnp.asarray(np.stack([text[start : start + length + 1] for start in starts]))


def loss_of(model: GPT, text: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next byte, in nats."""
    logits = model(text[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


@plait.jit(donate=True)
def train_step(model: GPT, optimizer: plait.Optimizer, text: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(loss_of)(model, text)
    optimizer.update(model, grads)
    return loss


@plait.jit
def evaluate(model: GPT, text: jax.Array) -> jax.Array:
    return loss_of(model, text) / math.log(2)


def train(
    width: int, heads: int, blocks: int, *, text: np.ndarray, steps: int, batch: int, length: int, seed: int = 0
) -> GPT:
    model = GPT(width, heads, blocks, rngs=plait.Rngs(seed))
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, max(1, steps // 10), steps)
    optimizer = plait.Optimizer(model, optax.adamw(rate, weight_decay=0.01), wrt=plait.Param)
    random = np.random.default_rng(seed)
    for step in range(steps):
        loss = train_step(model, optimizer, sample_batch(text, batch, length, random))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: {float(loss) / math.log(2):.2f} bits per byte")
    return model


def main(argv: Sequence[str] | None = None) -> float:
    """Train, write a few lines, and return the bits per byte on held-out text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="bytes of training text")
    parser.add_argument("--write", type=int, default=200, help="bytes to write at the end")
    options = parser.parse_args(argv)

    text = corpus(options.bytes)
    known, unknown = np.split(text, [len(text) * 19 // 20])
    sizes = (options.width, options.heads, options.blocks)
    model = train(*sizes, text=known, steps=options.steps, batch=options.batch, length=options.length)
    held_out = sample_batch(unknown, 32, options.length, np.random.default_rng(1))
    bits = float(evaluate(model, held_out))
    print(f"on held-out text: {bits:.2f} bits per byte")
    if options.write:
        prompt = b"def "
        written = plait.generate(model, list(prompt), options.write, temperature=0.8, rngs=plait.Rngs(0))
        print((prompt + bytes(written.to_list())).decode(errors="replace"))
    return bits


if __name__ == "__main__":
    main()
