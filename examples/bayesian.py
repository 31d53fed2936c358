"""A Bayesian network with NumPyro: a distribution over weights, and so over predictions.

    python examples/bayesian.py --samples 500

It needs ``pip install 'plait[numpyro]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import plait

NOISE = 0.1


class Net(plait.Module):
    """A function of one number. ``(batch, 1)`` → ``(batch, 1)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        self.hidden = plait.Linear(1, width, rngs=rngs)
        self.out = plait.Linear(width, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(plait.tanh(self.hidden(x)))


def data(count: int) -> tuple[jax.Array, jax.Array]:
    """Noisy points on a sine, in two pieces with a gap between them."""
    x = jnp.concatenate([jnp.linspace(-2, -0.8, count // 2), jnp.linspace(0.8, 2, count - count // 2)])[:, None]
    return x, jnp.sin(2 * x) + NOISE * jax.random.normal(jax.random.key(0), x.shape)


def posterior(net: Net, x: jax.Array, y: jax.Array, *, warmup: int, samples: int) -> plait.State:
    """Weights drawn by NUTS: a state of the network in which each array has an extra axis of samples."""

    def model(x: jax.Array, y: jax.Array) -> None:
        priors = {"hidden.*": dist.Normal(0.0, 2.0), "out.*": dist.Normal(0.0, 1.0)}
        mean = plait.bridge.random_numpyro_module("net", net, priors)(x)
        numpyro.sample("y", dist.Normal(mean, NOISE).to_event(2), obs=y)

    sampler = MCMC(NUTS(model, max_tree_depth=7), num_warmup=warmup, num_samples=samples, progress_bar=False)
    sampler.run(jax.random.key(1), x, y)
    return plait.bridge.numpyro_state("net", net, sampler.get_samples())


def predict(net: Net, drawn: plait.State, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation over the posterior."""
    graphdef = plait.graphdef(net)
    each = jax.vmap(lambda state: plait.merge(graphdef, state)(x))(drawn)
    return each.mean(0), each.std(0)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Sample; return the error at the data, the spread there and in the gap, and the coverage of a 2 σ band."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=40)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--samples", type=int, default=300)
    options = parser.parse_args(argv)

    net = Net(options.width, rngs=plait.Rngs(0))
    x, y = data(options.points)
    drawn = posterior(net, x, y, warmup=options.warmup, samples=options.samples)
    mean, spread = predict(net, drawn, x)
    in_the_gap = predict(net, drawn, jnp.linspace(-0.3, 0.3, 11)[:, None])[1]
    found = {
        "error": float(jnp.abs(mean - jnp.sin(2 * x)).mean()),
        "spread": float(spread.mean()),
        "spread in the gap": float(in_the_gap.mean()),
        "covered": float((jnp.abs(y - mean) < 2 * jnp.sqrt(spread**2 + NOISE**2)).mean()),
    }
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
