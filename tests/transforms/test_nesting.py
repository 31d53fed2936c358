"""Any transform in any other: numbers and updates equal those of the same nest of JAX's transforms. (rules U38, X1)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from tests.strategies import Node

# Each entry wraps ``f(model, x) -> y`` with a transform of plait, and its twin ``g(w, n, x) -> (y, n)`` with JAX's own.
# ``w`` is a parameter, ``n`` a counter that every call of ``f`` advances by one.


def model_step(model, x):
    model.n += 1
    return jnp.tanh(x * model.w) + model.n


def pure_step(w, n, x):
    n = n + 1
    return jnp.tanh(x * w) + n, n


def vmap(f):
    def wrapped(model, x):
        return plait.vmap(f, in_axes=(None, 0))(model, jnp.stack([x, 2 * x])).sum(0)

    return wrapped


def pure_vmap(g):
    def wrapped(w, n, x):
        y, n = jax.vmap(g, in_axes=(None, None, 0), out_axes=(0, None))(w, n, jnp.stack([x, 2 * x]))
        return y.sum(0), n

    return wrapped


def scan(f):
    def body(carry, _):
        model, x = carry
        return (model, f(model, x)), x

    def wrapped(model, x):
        (_, y), _ = plait.scan(body)((model, x), jnp.arange(2))
        return y

    return wrapped


def pure_scan(g):
    def wrapped(w, n, x):
        def body(carry, _):
            n, x = carry
            y, n = g(w, n, x)
            return (n, y), x

        (n, y), _ = jax.lax.scan(body, (n, x), jnp.arange(2))
        return y, n

    return wrapped


def fori(f):
    def wrapped(model, x):
        return plait.fori_loop(0, 2, lambda i, v: (v[0], f(v[0], v[1])), (model, x))[1]

    return wrapped


def pure_fori(g):
    def wrapped(w, n, x):
        def body(_, v):
            y, n = g(w, *v)
            return n, y

        n, y = jax.lax.fori_loop(0, 2, body, (n, x))
        return y, n

    return wrapped


def cond(f):
    return lambda model, x: plait.cond(model.n[...] < 3, f, lambda model, x: x, model, x)


def pure_cond(g):
    return lambda w, n, x: jax.lax.cond(n < 3, g, lambda w, n, x: (x, n), w, n, x)


def grad(f):
    def wrapped(model, x):
        (y, grads) = plait.value_and_grad(lambda model, x: f(model, x).sum())(model, x)
        return x * grads["w"][...] + y

    return wrapped


def pure_grad(g):
    def wrapped(w, n, x):
        def loss(w):
            y, m = g(w, n, x)
            return y.sum(), m

        (y, n), dw = jax.value_and_grad(loss, has_aux=True)(w)
        return x * dw + y, n

    return wrapped


WRAPS = {
    "jit": (plait.jit, jax.jit),
    "remat": (plait.remat, jax.checkpoint),
    "vmap": (vmap, pure_vmap),
    "scan": (scan, pure_scan),
    "fori": (fori, pure_fori),
    "cond": (cond, pure_cond),
    "grad": (grad, pure_grad),
}


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(WRAPS)), min_size=2, max_size=4))
def test_a_nest_equals_the_nest_of_jax(names):
    """And the second call, which finds what the first one kept, equals too."""
    f, g = model_step, pure_step
    for name in names:
        lift, pure = WRAPS[name]
        f, g = lift(f), pure(g)
    model = Node(w=plait.Param(jnp.float32(0.3)), n=plait.BatchStat(jnp.float32(0)))
    w, n, x = jnp.float32(0.3), jnp.float32(0), jnp.linspace(-0.5, 1.0, 3)
    variables = [model.w, model.n]
    for _ in range(2):
        found = f(model, x)
        expected, n = g(w, n, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(model.n[...], n)
        assert float(model.w[...]) == float(w)
    assert model.w is variables[0]
    assert model.n is variables[1]
