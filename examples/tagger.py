"""Tag each character of Python code with an LSTM that reads in both directions: comment, string, name, number or other.

    python examples/tagger.py --steps 1000

The text is the standard library's source, and Python's own tokenizer gives the labels.
"""

from __future__ import annotations

import argparse
import io
import os
import token
import tokenize
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plait

TAGS = {token.COMMENT: 1, token.STRING: 2, token.NAME: 3, token.NUMBER: 4}  # 0: anything else


class Tagger(plait.Module):
    """``(batch, length)`` of bytes → logits ``(batch, length, 5)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.embed = plait.Embed(256, width, rngs=rngs)
        self.lstm = plait.Bidirectional(
            plait.RNN(plait.LSTMCell(width, width, rngs=rngs)), plait.RNN(plait.LSTMCell(width, width, rngs=rngs))
        )
        self.tags = plait.Linear(2 * width, len(TAGS) + 1, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        return self.tags(self.lstm(self.embed(text)))


def tagged(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a program and the tag of each."""
    source = file.read_text(encoding="utf-8")
    starts = np.cumsum([0, *map(len, source.splitlines(keepends=True))])
    tags = np.zeros(len(source), np.int32)
    for found in tokenize.generate_tokens(io.StringIO(source).readline):
        first, last = (starts[line - 1] + column for line, column in (found.start, found.end))
        tags[first:last] = TAGS.get(found.type, 0)
    return np.frombuffer(source.encode("latin-1", "replace"), np.uint8).astype(np.int32), tags


def corpus(files: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [tagged(file) for file in sorted(Path(os.__file__).parent.glob("*.py"))[:files]]
    text, tags = zip(*pairs, strict=True)
    return np.concatenate(text), np.concatenate(tags)


def sample(text: np.ndarray, tags: np.ndarray, batch: int, length: int, random: np.random.Generator):
    starts = random.integers(0, len(text) - length, batch)
    rows = starts[:, None] + np.arange(length)
    return jnp.asarray(text[rows]), jnp.asarray(tags[rows])


@plait.jit
def train_step(model: Tagger, optimizer: plait.Optimizer, text: jax.Array, tags: jax.Array) -> jax.Array:
    def loss_of(model: Tagger) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(text), tags).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


@plait.jit
def accuracy(model: Tagger, text: jax.Array, tags: jax.Array) -> jax.Array:
    return (model(text).argmax(-1) == tags).mean()


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and return the accuracy on unseen text, with that of always predicting the most frequent tag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--files", type=int, default=60)
    options = parser.parse_args(argv)

    text, tags = corpus(options.files)
    cut = len(text) * 9 // 10
    model = Tagger(options.width, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(5e-3), wrt=plait.Param)
    random = np.random.default_rng(0)
    for step in range(options.steps):
        loss = train_step(model, optimizer, *sample(text[:cut], tags[:cut], 32, options.length, random))
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {float(loss):.3f}")
    unseen = sample(text[cut:], tags[cut:], 64, options.length, np.random.default_rng(1))
    found = {
        "accuracy": float(accuracy(model, *unseen)),
        "most frequent tag": float(max((unseen[1] == tag).mean() for tag in range(5))),
    }
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
