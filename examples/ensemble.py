"""An ensemble that knows what it does not know: eight networks, created and trained by one ``vmap``.

    python examples/ensemble.py --members 16

Between the training points the members agree; far from them, they do not.

Reference: Lakshminarayanan et al., "Deep Ensembles", 2017, arXiv:1612.01474.
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
        self.hidden = [plait.Linear(1, width, rngs=rngs), plait.Linear(width, width, rngs=rngs)]
        self.out = plait.Linear(width, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.hidden:
            x = plait.gelu(layer(x))
        return self.out(x)


def data(count: int = 64) -> tuple[jax.Array, jax.Array]:
    """Noisy points on a sine, none of them beyond 1."""
    x = jnp.linspace(-1, 1, count)[:, None]
    return x, jnp.sin(3 * x) + 0.05 * jax.random.normal(jax.random.key(0), x.shape)


def make(members: int, width: int, seed: int = 0) -> tuple[Net, plait.Optimizer]:
    """All members as one model: each variable has an extra axis of length ``members``."""

    @plait.vmap
    def one(key: jax.Array) -> tuple[Net, plait.Optimizer]:
        net = Net(width, rngs=plait.Rngs(key))
        return net, plait.Optimizer(net, optax.adam(1e-2), wrt=plait.Param)

    return one(jax.random.split(jax.random.key(seed), members))


@plait.jit
@plait.vmap(in_axes=(0, 0, None, None))
def train_step(net: Net, optimizer: plait.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(lambda net: jnp.mean((net(x) - y) ** 2))(net)
    optimizer.update(net, grads)
    return loss


@plait.jit
def predict(nets: Net, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation over the members."""
    each = plait.vmap(lambda net, x: net(x), in_axes=(0, None))(nets, x)
    return each.mean(0), each.std(0)


def train(members: int, width: int, steps: int) -> Net:
    nets, optimizers = make(members, width)
    x, y = data()
    for _ in range(steps):
        train_step(nets, optimizers, x, y)
    return nets


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return the error where there was data, and the members' spread there and elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(argv)

    nets = train(options.members, options.width, options.steps)
    inside, outside = jnp.linspace(-0.9, 0.9, 50)[:, None], jnp.linspace(2, 3, 50)[:, None]
    mean, spread = predict(nets, inside)
    found = {
        "error": float(jnp.abs(mean - jnp.sin(3 * inside)).mean()),
        "spread inside": float(spread.mean()),
        "spread outside": float(predict(nets, outside)[1].mean()),
    }
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
