"""Classify images with a vision transformer: patches are tokens, and one extra token collects the answer.

    python examples/vision_transformer.py --epochs 30

The data is scikit-learn's handwritten digits, read as in ``digits.py``.

Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020, arXiv:2010.11929.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from digits import accuracy, batches, digits

import plait


class Encoder(plait.Module):
    """A block of the transformer. ``(batch, words, width)`` → the same."""

    def __init__(self, width: int, heads: int, *, rngs: plait.Rngs):
        self.norm1 = plait.LayerNorm(width, rngs=rngs)
        self.attention = plait.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm2 = plait.LayerNorm(width, rngs=rngs)
        self.up = plait.Linear(width, 2 * width, rngs=rngs)
        self.down = plait.Linear(2 * width, width, rngs=rngs)
        self.dropout = plait.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(plait.gelu(self.up(self.norm2(x)))))


class VisionTransformer(plait.Module):
    """``(batch, 8, 8, 1)`` → logits ``(batch, 10)``."""

    def __init__(self, width: int, heads: int, blocks: int, *, rngs: plait.Rngs):
        init = plait.initializers.normal(0.02)
        self.patches = plait.Conv(1, width, kernel_size=(2, 2), strides=(2, 2), rngs=rngs)
        self.answer = plait.Param(init(rngs.params(), (1, 1, width), jnp.float32))
        self.positions = plait.Param(init(rngs.params(), (1, 17, width), jnp.float32))
        self.blocks = [Encoder(width, heads, rngs=rngs) for _ in range(blocks)]
        self.norm = plait.LayerNorm(width, rngs=rngs)
        self.head = plait.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        x = x.reshape(len(x), -1, x.shape[-1])
        answer = jnp.broadcast_to(self.answer[...], (len(x), 1, x.shape[-1]))
        x = jnp.concatenate([answer, x], axis=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


@plait.jit
def train_step(model: VisionTransformer, optimizer: plait.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: VisionTransformer) -> jax.Array:
        smooth = optax.smooth_labels(jax.nn.one_hot(y, 10), 0.1)
        return optax.softmax_cross_entropy(model(x), smooth).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args(argv)

    images, labels = digits()
    train, test = slice(0, 1440), slice(1440, None)
    model = VisionTransformer(options.width, options.heads, options.blocks, rngs=plait.Rngs(0))
    steps = options.epochs * (1440 // 48)
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10, steps)
    optimizer = plait.Optimizer(model, optax.adamw(rate), wrt=plait.Param)
    reached = 0.0
    for epoch in range(options.epochs):
        model.train()
        for x, y in batches(images[train], labels[train], 48, epoch):
            loss = train_step(model, optimizer, jnp.asarray(x), jnp.asarray(y))
        model.eval()
        reached = float(accuracy(model, jnp.asarray(images[test]), jnp.asarray(labels[test])))
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}, accuracy on test {reached:.3f}")
    return reached


if __name__ == "__main__":
    main()
