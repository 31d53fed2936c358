"""A Gaussian process whose kernel is computed by a network (deep kernel learning).

    python examples/gaussian_process.py --steps 600

The function jumps, which no smooth kernel can describe: the network learns to pull the two sides apart. Both processes
are fitted by their marginal likelihood.

Reference: Wilson et al., "Deep Kernel Learning", 2015, arXiv:1511.02222.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import optax

import plait


class Process(plait.Module):
    """Features, an RBF kernel on them, and noise. Without a network the features are the inputs, ``(points, 1)``."""

    def __init__(self, features: plait.Module | None):
        self.features = features
        self.log_scale = plait.Param(jnp.zeros(()))
        self.log_length = plait.Param(jnp.zeros(()))
        self.log_noise = plait.Param(jnp.log(jnp.float32(0.1)))

    def kernel(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Covariances of the function's values, ``(len(a), len(b))``."""
        if self.features is not None:
            a, b = self.features(a), self.features(b)
        distance = ((a[:, None] - b[None]) ** 2).sum(-1) / jnp.exp(2 * self.log_length)
        return jnp.exp(2 * self.log_scale - distance / 2)

    def factor(self, x: jax.Array) -> jax.Array:
        """The Cholesky factor of the covariances of noisy values."""
        noise = jnp.exp(2 * self.log_noise) + 1e-5
        return jnp.linalg.cholesky(self.kernel(x, x) + noise * jnp.eye(len(x)))

    def surprise(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The negative log marginal likelihood per point."""
        factor = self.factor(x)
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        total = 0.5 * white @ white + jnp.log(jnp.diag(factor)).sum() + 0.5 * len(x) * math.log(2 * math.pi)
        return total / len(x)

    def predict(self, x: jax.Array, y: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and standard deviation of the function at new points, given values ``y`` at ``x``."""
        factor = self.factor(x)
        cross = jax.scipy.linalg.solve_triangular(factor, self.kernel(x, new), lower=True)
        white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        variance = jnp.exp(2 * self.log_scale) - (cross**2).sum(0)
        return cross.T @ white, jnp.sqrt(jnp.maximum(variance, 0))


def network(width: int, *, rngs: plait.Rngs) -> plait.Module:
    return plait.Sequential(
        plait.Linear(1, width, rngs=rngs), plait.tanh, plait.Linear(width, width, rngs=rngs), plait.tanh,
        plait.Linear(width, 2, rngs=rngs),
    )  # fmt: skip


def truth(x: jax.Array) -> jax.Array:
    return jnp.where(x[:, 0] > 0, 1.0, -1.0) + 0.3 * jnp.sin(6 * x[:, 0])


def data(count: int = 60) -> tuple[jax.Array, jax.Array]:
    x = jax.random.uniform(jax.random.key(0), (count, 1), minval=-1.0, maxval=1.0)
    return x, truth(x) + 0.05 * jax.random.normal(jax.random.key(1), (count,))


@plait.jit
def train_step(process: Process, optimizer: plait.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(Process.surprise)(process, x, y)
    optimizer.update(process, grads)
    return loss


def fit(process: Process, steps: int) -> float:
    """Fit to the data, and return the negative log marginal likelihood per point."""
    x, y = data()
    optimizer = plait.Optimizer(process, optax.adam(1e-2), wrt=plait.Param)
    for _ in range(steps):
        loss = train_step(process, optimizer, x, y)
    return float(loss)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Fit both; return the negative log likelihood of each, and its error near the jump."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args(argv)

    new = jnp.linspace(-0.3, 0.3, 101)[:, None]
    found = {}
    for name, features in (("plain", None), ("deep", network(options.width, rngs=plait.Rngs(0)))):
        process = Process(features)
        found[f"{name} surprise"] = fit(process, options.steps)
        found[f"{name} error"] = float(jnp.abs(process.predict(*data(), new)[0] - truth(new)).mean())
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
