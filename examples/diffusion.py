"""A diffusion model of points on a circle: a network learns to remove noise, and turns pure noise into the circle.

    python examples/diffusion.py --steps 3000

The answer is known, so you can check the result: every point should lie at distance 1 from the origin.

Reference: Ho et al., "Denoising Diffusion Probabilistic Models", 2020, arXiv:2006.11239.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

import plait


class Denoiser(plait.Module):
    """Predicts the noise in noisy points. ``(batch, 2)`` and levels ``(batch,)`` → ``(batch, 2)``."""

    def __init__(self, width: int, levels: int, *, rngs: plait.Rngs):
        self.level = plait.Embed(levels, width, rngs=rngs)
        self.point = plait.Linear(2, width, rngs=rngs)
        self.hidden = [plait.Linear(width, width, rngs=rngs) for _ in range(2)]
        self.out = plait.Linear(width, 2, kernel_init=plait.initializers.zeros, rngs=rngs)

    def __call__(self, points: jax.Array, level: jax.Array) -> jax.Array:
        x = self.point(points) + self.level(level)
        for layer in self.hidden:
            x = x + layer(plait.silu(x))
        return self.out(plait.silu(x))


def kept(levels: int) -> tuple[jax.Array, jax.Array]:
    """The share of the signal's variance that each step keeps, and the share that remains after that many steps."""
    step = 1 - jnp.linspace(1e-4, 0.2, levels)
    return step, jnp.cumprod(step)


def circle(count: int, rngs: plait.Rngs) -> jax.Array:
    angle = rngs.data.uniform((count,), maxval=2 * jnp.pi)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


@plait.jit(static_argnames=("levels", "batch"))
def train_step(model: Denoiser, optimizer: plait.Optimizer, rngs: plait.Rngs, *, levels: int, batch: int) -> jax.Array:
    _, left = kept(levels)
    points, noise = circle(batch, rngs), rngs.noise.normal((batch, 2))
    level = rngs.noise.randint((batch,), 0, levels)
    noisy = jnp.sqrt(left[level])[:, None] * points + jnp.sqrt(1 - left[level])[:, None] * noise

    def loss_of(model: Denoiser) -> jax.Array:
        return jnp.mean((model(noisy, level) - noise) ** 2)

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


@plait.jit(static_argnames=("levels", "count"))
def sample(model: Denoiser, rngs: plait.Rngs, *, levels: int, count: int) -> jax.Array:
    """Points generated from noise, ``(count, 2)``."""
    step, left = kept(levels)

    def less_noise(place: jax.Array, carry: tuple) -> tuple:
        model, rngs, points = carry
        level = levels - 1 - place
        predicted = model(points, jnp.broadcast_to(level, (count,)))
        mean = (points - (1 - step[level]) / jnp.sqrt(1 - left[level]) * predicted) / jnp.sqrt(step[level])
        spread = jnp.where(level > 0, jnp.sqrt(1 - step[level]), 0.0)
        return model, rngs, mean + spread * rngs.noise.normal((count, 2))

    start = (model, rngs, rngs.noise.normal((count, 2)))
    return plait.fori_loop(0, levels, less_noise, start)[2]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and return mean and standard deviation of the samples' distance from the origin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--levels", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(argv)

    rngs = plait.Rngs(0)
    model = Denoiser(options.width, options.levels, rngs=rngs)
    optimizer = plait.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, options.steps)), wrt=plait.Param)
    for step in range(options.steps):
        loss = train_step(model, optimizer, rngs, levels=options.levels, batch=256)
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: loss {float(loss):.3f}")
    points = sample(model, rngs, levels=options.levels, count=1000)
    radius = jnp.linalg.norm(points, axis=-1)
    centre = jnp.linalg.norm(points.mean(0))
    found = {"mean": float(radius.mean()), "spread": float(radius.std()), "centre": float(centre)}
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
