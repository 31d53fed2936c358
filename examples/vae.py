"""A variational autoencoder of handwritten digits: it learns to draw new ones.

    python examples/vae.py --epochs 60

Reference: Kingma and Welling, "Auto-Encoding Variational Bayes", 2013, arXiv:1312.6114.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from digits import batches, digits

import plait


class VAE(plait.Module):
    """An encoder to the mean and spread of a code, and a decoder. Images are ``(batch, 64)``, in [0, 1]."""

    def __init__(self, hidden: int, code: int, *, rngs: plait.Rngs):
        self.code = code
        self.encoder = plait.Sequential(
            plait.Linear(64, hidden, rngs=rngs), plait.gelu, plait.Linear(hidden, 2 * code, rngs=rngs)
        )
        self.decoder = plait.Sequential(
            plait.Linear(code, hidden, rngs=rngs), plait.gelu, plait.Linear(hidden, 64, rngs=rngs)
        )
        self.rngs = rngs.fork()  # noise is drawn from the model's own stream

    def encode(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and logarithm of the variance of each image's code."""
        mean, log_variance = jnp.split(self.encoder(images), 2, axis=-1)
        return mean, log_variance

    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        mean, log_variance = self.encode(images)
        code = mean + jnp.exp(log_variance / 2) * self.rngs.noise.normal(mean.shape)
        return self.decoder(code), mean, log_variance

    def draw(self, count: int) -> jax.Array:
        """New images, ``(count, 8, 8)``."""
        return jax.nn.sigmoid(self.decoder(self.rngs.noise.normal((count, self.code)))).reshape(count, 8, 8)


def negative_elbo(model: VAE, images: jax.Array) -> jax.Array:
    """Reconstruction error plus the divergence from the prior, in nats per image."""
    logits, mean, log_variance = model(images)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, images).sum(-1)
    divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
    return (reconstruction + divergence).mean()


@plait.jit
def train_step(model: VAE, optimizer: plait.Optimizer, images: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(negative_elbo)(model, images)
    optimizer.update(model, grads)
    return loss


def train(epochs: int, hidden: int = 128, code: int = 8, seed: int = 0) -> tuple[VAE, list[float]]:
    """The model, and the mean loss of each epoch."""
    images, labels = digits()
    model = VAE(hidden, code, rngs=plait.Rngs(seed))
    optimizer = plait.Optimizer(model, optax.adam(2e-3), wrt=plait.Param)
    losses = []
    for epoch in range(epochs):
        batch_losses = [
            train_step(model, optimizer, jnp.asarray(x.reshape(len(x), 64)))
            for x, _ in batches(images[:1440], labels[:1440], 48, epoch, augment=False)
        ]
        losses.append(float(jnp.stack(batch_losses).mean()))
    return model, losses


def main(argv: Sequence[str] | None = None) -> float:
    """Train, draw samples, and return the loss on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--code", type=int, default=8)
    options = parser.parse_args(argv)

    model, losses = train(options.epochs, options.hidden, options.code)
    print(f"loss of the first epoch {losses[0]:.2f}, of the last {losses[-1]:.2f}")
    unseen = jnp.asarray(digits()[0][1440:].reshape(-1, 64))
    loss = float(negative_elbo(model, unseen))
    print(f"on held-out images {loss:.2f}")
    for row in model.draw(1)[0]:
        print("".join(" .:-=+*#%@"[int(9.99 * value)] * 2 for value in row))
    return loss


if __name__ == "__main__":
    main()
