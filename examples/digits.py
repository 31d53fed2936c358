"""Classify handwritten digits with a small convolutional network.

    python examples/digits.py --epochs 10

The data is scikit-learn's: 1,797 images of 8 × 8 pixels. It needs ``pip install scikit-learn``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import plait


class ConvNet(plait.Module):
    """Two convolutions, each with batch normalization, and a linear layer. ``(batch, 8, 8, 1)`` → ``(batch, 10)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.conv1 = plait.Conv(1, width, kernel_size=(3, 3), rngs=rngs)
        self.norm1 = plait.BatchNorm(width, rngs=rngs)
        self.conv2 = plait.Conv(width, 2 * width, kernel_size=(3, 3), rngs=rngs)
        self.norm2 = plait.BatchNorm(2 * width, rngs=rngs)
        self.dropout = plait.Dropout(0.3, rngs=rngs)
        self.out = plait.Linear(4 * 2 * width, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = plait.relu(self.norm1(self.conv1(x)))
        x = plait.max_pool(x, (2, 2), strides=(2, 2))
        x = plait.relu(self.norm2(self.conv2(x)))
        x = plait.max_pool(x, (2, 2), strides=(2, 2))
        return self.out(self.dropout(x.reshape(len(x), -1)))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images in [0, 1], ``(1797, 8, 8, 1)``, and their labels, in an order that mixes the writers."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[order].astype(np.int32)


def batches(images: np.ndarray, labels: np.ndarray, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch in random order; an incomplete last batch is dropped."""
    order = np.random.default_rng(seed).permutation(len(images))
    for start in range(0, len(images) - size + 1, size):
        rows = order[start : start + size]
        yield images[rows], labels[rows]


@plait.jit
def train_step(model: ConvNet, optimizer: plait.Optimizer, metrics: plait.MultiMetric, x: jax.Array, y: jax.Array):
    def loss_of(model: ConvNet) -> tuple[jax.Array, jax.Array]:
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

    (loss, logits), grads = plait.value_and_grad(loss_of, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss, logits=logits, labels=y)


@plait.jit
def accuracy(model: ConvNet, x: jax.Array, y: jax.Array) -> jax.Array:
    return (model(x).argmax(-1) == y).mean()


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the 357 held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    images, labels = digits()
    train, test = slice(0, 1440), slice(1440, None)
    model = ConvNet(options.width, rngs=plait.Rngs(options.seed))
    optimizer = plait.Optimizer(model, optax.adam(3e-3), wrt=plait.Param)
    metrics = plait.MultiMetric(loss=plait.metrics.Average("loss"), accuracy=plait.metrics.Accuracy())

    reached = 0.0
    for epoch in range(options.epochs):
        model.train()
        metrics.reset()
        for x, y in batches(images[train], labels[train], options.batch_size, options.seed + epoch):
            train_step(model, optimizer, metrics, jnp.asarray(x), jnp.asarray(y))
        model.eval()
        reached = float(accuracy(model, jnp.asarray(images[test]), jnp.asarray(labels[test])))
        seen = metrics.compute()
        print(f"epoch {epoch + 1}: loss {seen['loss']:.3f}, accuracy {seen['accuracy']:.3f}, on test {reached:.3f}")
    return reached


if __name__ == "__main__":
    main()
