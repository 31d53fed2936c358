"""Learn to learn: after training on many sine waves, a few points of a new one are enough (MAML).

    python examples/maml.py --steps 2000

The inner step returns a new model, so the outer gradient flows through it; ``vmap`` adapts to many tasks at once.

Reference: Finn et al., "Model-Agnostic Meta-Learning", 2017, arXiv:1703.03400.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

import plait


class Net(plait.Module):
    """A function of one number. ``(batch, 1)`` → ``(batch, 1)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.layers = [plait.Linear(1, width, rngs=rngs), plait.Linear(width, width, rngs=rngs)]
        self.out = plait.Linear(width, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = plait.tanh(layer(x))
        return self.out(x)


def waves(key: jax.Array, tasks: int, points: int) -> tuple[jax.Array, jax.Array]:
    """Points on random sine waves, ``(tasks, points, 1)``."""
    keys = jax.random.split(key, 3)
    x = jax.random.uniform(keys[0], (tasks, points, 1), minval=-4.0, maxval=4.0)
    size = jax.random.uniform(keys[1], (tasks, 1, 1), minval=0.5, maxval=2.0)
    phase = jax.random.uniform(keys[2], (tasks, 1, 1), maxval=jnp.pi)
    return x, size * jnp.sin(x + phase)


def loss_of(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((net(x) - y) ** 2)


def adapted(net: Net, x: jax.Array, y: jax.Array, rate: float = 0.05) -> Net:
    """A new model, one step of gradient descent from the given one."""
    grads = plait.grad(loss_of)(net, x, y)
    graphdef, params = plait.split(net)
    return plait.merge(graphdef, jax.tree.map(lambda value, grad: value - rate * grad, params, grads))


def loss_after_adapting(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    """Adapt to the first half of the points of each task, and evaluate on the second half."""

    def one(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
        half = len(x) // 2
        for _ in range(2):
            net = adapted(net, x[:half], y[:half])
        return loss_of(net, x[half:], y[half:])

    return plait.vmap(one, in_axes=(None, 0, 0))(net, x, y).mean()


@plait.jit
def train_step(net: Net, optimizer: plait.Optimizer, key: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(loss_after_adapting)(net, *waves(key, 16, 20))
    optimizer.update(net, grads)
    return loss


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return the loss on new waves after adapting, for the trained net and for an untrained one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=40)
    options = parser.parse_args(argv)

    net = Net(options.width, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(net, optax.adam(3e-3), wrt=plait.Param)
    new = waves(jax.random.key(1), 100, 20)
    untrained = float(loss_after_adapting(net, *new))
    for step in range(options.steps):
        loss = train_step(net, optimizer, jax.random.fold_in(jax.random.key(0), step))
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}: loss after adapting {float(loss):.3f}")
    found = {"untrained": untrained, "trained": float(loss_after_adapting(net, *new))}
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
