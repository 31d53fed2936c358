"""A neural ordinary differential equation: a network learns the law of motion from a few trajectories.

    python examples/neural_ode.py --steps 1000

The true motion is a damped spiral. The network sees it up to time 2, and must continue it to time 6. It needs
``pip install diffrax``.

Reference: Chen et al., "Neural Ordinary Differential Equations", 2018, arXiv:1806.07366.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import diffrax
import jax
import jax.numpy as jnp
import optax

import plait

TRUTH = jnp.array([[-0.1, 2.0], [-2.0, -0.1]])


class Field(plait.Module):
    """The velocity at a point. ``(2,)`` → ``(2,)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.hidden = plait.Linear(2, width, rngs=rngs)
        self.out = plait.Linear(width, 2, rngs=rngs)

    def __call__(self, y: jax.Array) -> jax.Array:
        return self.out(plait.tanh(self.hidden(y)))


def solve(field: Field, start: jax.Array, times: jax.Array) -> jax.Array:
    """The position at each time, ``(len(times), 2)``. The state is passed as ``args``, which have gradients."""
    graphdef, state = plait.split(field)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, state: plait.merge(graphdef, state)(y)),
        diffrax.Tsit5(),
        t0=times[0],
        t1=times[-1],
        dt0=0.1,
        y0=start,
        args=state,
        saveat=diffrax.SaveAt(ts=times),
        max_steps=100,
    )
    return solution.ys


def spirals(count: int, times: jax.Array) -> jax.Array:
    """True trajectories from random points, ``(count, len(times), 2)``."""
    starts = jax.random.normal(jax.random.key(0), (count, 2))
    moved = jax.vmap(lambda t: jax.scipy.linalg.expm(TRUTH * t))(times)
    return jnp.einsum("tij,nj->nti", moved, starts)


def errors(field: Field, paths: jax.Array, times: jax.Array) -> jax.Array:
    """The mean squared distance from the true paths at each time."""
    found = plait.vmap(solve, in_axes=(None, 0, None))(field, paths[:, 0], times)
    return ((found - paths) ** 2).mean((0, 2))


@plait.jit
def train_step(field: Field, optimizer: plait.Optimizer, paths: jax.Array, times: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(lambda field: errors(field, paths, times).mean())(field)
    optimizer.update(field, grads)
    return loss


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return the error on the times seen in training, and on later ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args(argv)

    field = Field(options.width, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(field, optax.adam(optax.cosine_decay_schedule(2e-2, options.steps)), wrt=plait.Param)
    times = jnp.linspace(0.0, 6.0, 25)
    paths = spirals(16, times)
    seen = 9  # the times up to 2
    look = plait.jit(errors)
    untrained = look(field, paths, times)
    for step in range(options.steps):
        loss = train_step(field, optimizer, paths[:, :seen], times[:seen])
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: error {float(loss):.5f}")
    trained = look(field, paths, times)
    found = {
        "untrained": float(untrained.mean()),
        "seen": float(trained[:seen].mean()),
        "continued": float(trained[seen:].mean()),
    }
    print({name: round(value, 5) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
