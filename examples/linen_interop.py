"""A Linen encoder inside a plait model: train both together, and pass the encoder's variables back to Linen.

    python examples/linen_interop.py --epochs 5

The digits are read as in ``digits.py``. It needs ``pip install 'plait[linen]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from digits import batches, digits

import plait
from plait import bridge


class LinenEncoder(nn.Module):
    """Existing Linen code, unchanged."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Dense(self.width)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.relu(x)


class Classifier(plait.Module):
    """The encoder, and a head written with plait. ``(batch, 64)`` → ``(batch, 10)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.encoder = bridge.ToNNX(LinenEncoder(width), rngs=rngs)
        self.head = plait.Linear(width, 10, rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        hidden = self.encoder(x, train=train, mutable=["batch_stats"]) if train else self.encoder(x)
        return self.head(hidden)


@plait.jit
def train_step(model: Classifier, optimizer: plait.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x, train=True), y).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return the accuracy, and how far Linen's own encoder with these variables is from ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(argv)

    images, labels = digits()
    images = images.reshape(-1, 64)
    model = bridge.lazy_init(Classifier(options.width, rngs=plait.Rngs(0)), jnp.asarray(images[:2]), train=False)
    optimizer = plait.Optimizer(model, optax.adam(3e-3), wrt=plait.Param)
    for epoch in range(options.epochs):
        for x, y in batches(images[:1440], labels[:1440], 48, epoch, augment=False):
            loss = train_step(model, optimizer, jnp.asarray(x), jnp.asarray(y))
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}")

    x, y = jnp.asarray(images[1440:]), jnp.asarray(labels[1440:])
    variables = bridge.to_collections(model.encoder)  # a dictionary, as Linen's `init` returns
    theirs = LinenEncoder(options.width).apply(variables, x)
    found = {
        "accuracy": float((model(x, train=False).argmax(-1) == y).mean()),
        "difference": float(jnp.abs(theirs - model.encoder(x)).max()),
    }
    print(found)
    return found


if __name__ == "__main__":
    main()
