"""Reinforcement learning with PPO: balance a pole on a cart. The environment is written in JAX, so all is compiled.

    python examples/ppo.py --updates 100

Reference: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347. The environment is
that of Barto, Sutton and Anderson, 1983.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import plait

DISCOUNT, SMOOTHING, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
LONGEST = 200  # steps of an episode


class Environment(NamedTuple):
    """Carts with their poles: ``body`` has position, speed, angle and its speed, ``(carts, 4)``."""

    body: jax.Array
    age: jax.Array  # steps since the episode began, ``(carts,)``


def begin(key: jax.Array, carts: int) -> Environment:
    return Environment(jax.random.uniform(key, (carts, 4), minval=-0.05, maxval=0.05), jnp.zeros(carts, jnp.int32))


def move(environment: Environment, action: jax.Array, key: jax.Array) -> tuple[Environment, jax.Array, jax.Array]:
    """Push each cart to the left (0) or right (1). Returns the next state, which poles fell, and which times are up.

    A finished episode restarts at once.
    """
    _, speed, angle, turning = environment.body.T
    force = jnp.where(action == 1, 10.0, -10.0)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * turning**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    pull = push - 0.05 * turn * cosine / 1.1
    body = environment.body + 0.02 * jnp.stack([speed, pull, turning, turn], axis=-1)
    age = environment.age + 1
    fell = (jnp.abs(body[:, 0]) > 2.4) | (jnp.abs(body[:, 2]) > 0.21)
    late = age >= LONGEST
    over = fell | late
    fresh = begin(key, len(body))
    return Environment(jnp.where(over[:, None], fresh.body, body), jnp.where(over, fresh.age, age)), fell, late


class Agent(plait.Module):
    """Policy and value function. ``(batch, 4)`` → logits ``(batch, 2)`` and values ``(batch,)``."""

    def __init__(self, width: int, *, rngs: plait.Rngs):
        def tower(out: int, scale: float) -> plait.Sequential:
            last = plait.Linear(width, out, kernel_init=plait.initializers.orthogonal(scale), rngs=rngs)
            return plait.Sequential(plait.Linear(4, width, rngs=rngs), plait.tanh, last)

        self.policy, self.value = tower(2, 0.01), tower(1, 1.0)

    def __call__(self, body: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.policy(body), self.value(body)[:, 0]


class Steps(NamedTuple):
    """Recorded transitions, ``(steps, carts, …)``."""

    body: jax.Array
    action: jax.Array
    log_probability: jax.Array
    value: jax.Array
    fell: jax.Array
    late: jax.Array


def act(agent: Agent, environment: Environment, rngs: plait.Rngs, steps: int) -> tuple[Environment, Steps]:
    """Let the agent act, and record the transitions."""

    def one(carry: tuple, _: jax.Array) -> tuple:
        agent, rngs, environment = carry
        logits, value = agent(environment.body)
        action = rngs.action.categorical(logits)
        log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=-1)[:, 0]
        after, fell, late = move(environment, action, rngs.environment())
        return (agent, rngs, after), Steps(environment.body, action, log_probability, value, fell, late)

    (_, _, environment), seen = plait.scan(one, length=steps)((agent, rngs, environment), jnp.arange(steps))
    return environment, seen


def advantages(seen: Steps, last: jax.Array) -> jax.Array:
    """Generalized advantage estimates: how much better an action was than expected. Each step has reward 1."""

    def back(carry: tuple[jax.Array, jax.Array], step: Steps) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        following, next_value = carry
        goes_on = 1.0 - (step.fell | step.late)
        # An episode that is truncated would have continued: bootstrap from the value of its state.
        expected = jnp.where(step.late & ~step.fell, step.value, goes_on * next_value)
        advantage = 1.0 + DISCOUNT * expected - step.value + DISCOUNT * SMOOTHING * goes_on * following
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), seen, reverse=True)[1]


def loss_of(agent: Agent, seen: Steps, advantage: jax.Array, wanted: jax.Array) -> jax.Array:
    """The clipped objective, the value loss, and the entropy bonus."""
    logits, value = agent(seen.body)
    log_probabilities = jax.nn.log_softmax(logits)
    log_probability = jnp.take_along_axis(log_probabilities, seen.action[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(log_probability - seen.log_probability)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    entropy = -(jnp.exp(log_probabilities) * log_probabilities).sum(-1)
    return (0.5 * (value - wanted) ** 2 - ENTROPY * entropy - gain).mean()


@plait.jit(static_argnames=("steps", "epochs", "parts"))
def update(
    agent: Agent,
    optimizer: plait.Optimizer,
    environment: Environment,
    rngs: plait.Rngs,
    *,
    steps: int,
    epochs: int = 4,
    parts: int = 4,
) -> tuple[Environment, jax.Array]:
    """Collect transitions, and train on them for a few epochs. Returns the environment, and the share of falls."""
    environment, seen = act(agent, environment, rngs, steps)
    advantage = advantages(seen, agent(environment.body)[1])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (seen, advantage, advantage + seen.value))

    def learn(carry: tuple, rows: jax.Array) -> tuple:
        agent, optimizer = carry
        grads = plait.grad(loss_of)(agent, *jax.tree.map(lambda leaf: leaf[rows], flat))
        optimizer.update(agent, grads)
        return (agent, optimizer), None

    count = advantage.size
    order = jnp.concatenate([rngs.order.permutation(count).reshape(parts, -1) for _ in range(epochs)])
    plait.scan(learn)((agent, optimizer), order)
    return environment, seen.fell.mean()


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train; return how many steps a pole stays up, at the beginning and at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--carts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=64, help="steps between updates")
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(argv)

    rngs = plait.Rngs(0)
    agent = Agent(options.width, rngs=rngs)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))
    optimizer = plait.Optimizer(agent, tx, wrt=plait.Param)
    environment = begin(rngs.environment(), options.carts)
    falls = []
    for number in range(options.updates):
        environment, fell = update(agent, optimizer, environment, rngs, steps=options.steps)
        falls.append(float(fell))
        if (number + 1) % 10 == 0:
            print(f"update {number + 1}: a pole falls every {1 / max(falls[-1], 1e-3):.0f} steps")
    last = sum(falls[-5:]) / 5
    found = {"first": 1 / max(falls[0], 1e-3), "last": 1 / max(last, 1e-3)}
    print({name: round(value, 1) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
