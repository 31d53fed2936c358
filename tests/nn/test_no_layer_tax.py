"""A layer costs what its expression costs: the optimised program has no more operations, forwards and backwards."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.conformance.layers import LAYERS
from tests.nn.plain import PLAIN
from tests.nn.twins import pure, users_promotion

NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}  # names, views and literals


def operations(compiled):
    """The operations of an optimised program that do something, those inside fusions and loops among them."""
    kinds = re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", compiled.as_text(), re.MULTILINE)
    return [kind for kind in kinds if kind not in NO_WORK]


def weighed(y):
    return (y * jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)).sum()


def test_the_count_finds_the_operations():
    compiled = jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((3, 3))).compile()
    assert {"sine", "dot"} <= set(operations(compiled))


def test_every_layer_has_an_expression():
    assert set(PLAIN) == {case.name for case in LAYERS}


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_a_layer_costs_no_operation_over_plain_jax(case):
    layer, x = case.make(plait.Rngs(0)), case.x
    arrays = pure(plait.state(layer))
    params = {name: arrays[name] for name in pure(plait.state(layer, plait.Param))}
    for path, leaf in plait.to_flat_state(plait.state(layer, plait.RngKey)):
        arrays[".".join(map(str, path))] = leaf[...]  # a typed key, not its words
    rest = {name: array for name, array in arrays.items() if name not in params}
    argnums = (0, 1) if jnp.issubdtype(x.dtype, jnp.inexact) else 0

    def expression(params, x, rest):
        out = PLAIN[case.name]({**params, **rest}, x)
        return out if isinstance(out, tuple) else (out, None)

    def plain_loss(params, x, rest):
        y, written = expression(params, x, rest)
        return weighed(y), (y, written)

    def plain_step(params, x, rest):
        value, grads = jax.value_and_grad(plain_loss, argnums, has_aux=True)(params, x, rest)
        return grads, value

    def loss(layer, x):
        y = layer(x)
        return weighed(y), y

    step = plait.value_and_grad(loss, argnums=argnums, has_aux=True)
    with users_promotion():  # the expressions are written as users write them
        expected, _ = expression(params, x, rest)
        plain = jax.jit(expression).lower(params, x, rest), jax.jit(plain_step).lower(params, x, rest)
    ours = plait.jit(lambda layer, x: layer(x)).lower(layer, x), plait.jit(step).lower(layer, x)
    for mine, other in zip(ours, plain, strict=True):
        mine, other = operations(mine.compile()), operations(other.compile())
        assert len(mine) <= len(other), sorted(set(mine) ^ set(other))
    np.testing.assert_allclose(layer(x), expected, rtol=2e-5, atol=2e-5)
