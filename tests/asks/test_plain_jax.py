"""Ask 21: JAX's own transforms take modules as pytrees; a change inside is returned or reported, never just lost."""

import gc
import warnings

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import LostUpdateWarning


class Counter(plait.Module):
    def __init__(self):
        self.weight = plait.Param(jnp.ones(2))
        self.count = plait.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        self.count += 1
        return (self.weight * x).sum()


def quiet(function, *args):
    """The result of a call that may not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = function(*args)
        gc.collect()
    return result


def loss(model, x):
    return (model.weight * x).sum()


X = jnp.arange(2.0)

READING = {
    "jit": lambda m: jax.jit(loss)(m, X),
    "grad": lambda m: jax.grad(loss)(m, X).weight.sum(),
    "vmap": lambda m: jax.vmap(loss, in_axes=(None, 0))(m, jnp.stack([X, X])).sum() / 2,
    "scan": lambda m: jax.lax.scan(lambda c, x: (c, loss(m, x)), 0.0, X[None])[1].sum(),
    "map": lambda m: jax.lax.map(lambda x: loss(m, x), X[None]).sum(),
    "remat": lambda m: jax.checkpoint(loss)(m, X),
}


@pytest.mark.parametrize("name", READING)
def test_reading_works_and_is_quiet(name):
    assert quiet(READING[name], Counter()) == 1.0


def returned(model, x):
    out = model(x)
    return out, model


RETURNING = {
    "jit": lambda m: jax.jit(returned)(m, X)[1],
    "vmap": lambda m: jax.vmap(returned, in_axes=(None, 0), out_axes=(0, None))(m, X[None])[1],
    "scan": lambda m: jax.lax.scan(lambda m, x: (returned(m, x)[1], None), m, X[None])[0],
    "grad with aux": lambda m: jax.grad(returned, has_aux=True)(m, X)[1],
    "while": lambda m: jax.lax.while_loop(lambda m: m.count[...] < 1, lambda m: returned(m, X)[1], m),
}


@pytest.mark.parametrize("name", RETURNING)
def test_a_change_that_is_returned_arrives_and_is_quiet(name):
    model = Counter()
    assert quiet(RETURNING[name], model).count[...] == 1
    assert model.count[...] == 0


def collected(function, *args):
    function(*args)
    gc.collect()


LOSING = {
    "jit": lambda m: jax.jit(lambda m: m(X))(m),
    "grad": lambda m: jax.grad(lambda m: m(X))(m),
    "vmap": lambda m: jax.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, X[None]),
    "remat": lambda m: jax.grad(jax.checkpoint(lambda m: m(X)))(m),
}


@pytest.mark.parametrize("name", LOSING)
def test_a_change_that_is_lost_is_reported(name):
    with pytest.warns(LostUpdateWarning, match=r"BatchStat.*is lost"):
        collected(LOSING[name], Counter())


COPYING = {
    "tree.map": lambda m: jax.tree.map(lambda x: x * 2, m),
    "flatten": lambda m: jax.tree.unflatten(jax.tree.structure(m), jax.tree.leaves(m)),
}


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: jax.vmap(f, in_axes=None, axis_size=2)])
@pytest.mark.parametrize("name", COPYING)
def test_a_copy_made_inside_is_the_users_own(name, transform):
    """It was never the caller's, so nothing of the caller's is lost."""
    quiet(transform(lambda model: COPYING[name](model)(X)), Counter())


@pytest.mark.parametrize("name", COPYING)
def test_the_argument_beside_a_copy_is_still_watched(name):
    def step(model):
        copy = COPYING[name](model)
        return model(X) + copy(X)

    with pytest.warns(LostUpdateWarning, match="is lost"):
        collected(jax.jit(step), Counter())


def test_a_change_to_a_captured_module_is_an_error():
    model = Counter()
    with pytest.raises(plait.errors.TraceContextError, match=r"at +count .a BatchStat"):
        jax.lax.scan(lambda c, x: (c, model(x)), 0.0, X[None])
    assert model.count[...] == 0


def test_plaits_own_functions_inside_carry_it_out_by_hand():
    @jax.jit
    def step(graphdef, state):
        model = plait.merge(graphdef, state)
        out = model(X)
        return out, plait.state(model)

    model = Counter()
    _, state = quiet(step, *plait.split(model))
    plait.update(model, state)
    assert model.count[...] == 1
