import jax.numpy as jnp
import optax
import pytest

import plait

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax needs JAX's own promotion


def make(tx):
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    return model, plait.Optimizer(model, tx, wrt=plait.Param)


SCHEDULE = optax.linear_schedule(1.0, 0.0, transition_steps=4)
INJECTED = {
    "alone": lambda: optax.inject_hyperparams(optax.sgd)(SCHEDULE),
    "in a chain": lambda: optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.adam)(SCHEDULE)),
}


@pytest.mark.parametrize("name", INJECTED)
def test_the_rate_of_each_step_is_shown_in_metrics_inside_jit(name):
    model, optimizer = make(INJECTED[name]())
    metrics = plait.MultiMetric(rate=plait.metrics.Average("rate"))
    assert plait.learning_rate(optimizer) == 1.0

    @plait.jit
    def step(model, optimizer, metrics, x):
        optimizer.update(model, plait.grad(lambda model: model(x).sum())(model))
        metrics.update(rate=plait.learning_rate(optimizer))

    rates = []
    for _ in range(4):
        metrics.reset()
        step(model, optimizer, metrics, jnp.ones((1, 2)))
        rates.append(float(metrics.compute()["rate"]))
    assert rates == [1.0, 0.75, 0.5, 0.25]


def test_the_rate_of_one_group_of_parameters():
    """Written from the docs of groups and of rates, by a user who logs both in a jitted step."""
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    groups = {"bias": optax.inject_hyperparams(optax.sgd)(0.5), ...: optax.inject_hyperparams(optax.sgd)(SCHEDULE)}
    optimizer = plait.Optimizer(model, [optax.clip_by_global_norm(1.0), groups], wrt=plait.Param)

    @plait.jit
    def step(model, optimizer):
        optimizer.update(model, plait.grad(lambda model: model(jnp.ones(2)).sum())(model))
        return [plait.learning_rate(optimizer, f"opt_state[1][{i}].hyperparams.learning_rate") for i in range(2)]

    assert [[float(rate) for rate in step(model, optimizer)] for _ in range(2)] == [[0.5, 1.0], [0.5, 0.75]]
