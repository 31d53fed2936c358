"""The arithmetic of layers: compiled once outside of traces and traced once inside, equal to the last bit."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import plait
from plait.nn import arithmetic
from tests.conformance.layers import LAYERS
from tests.nn.twins import pure

every_layer = pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)


@pytest.fixture
def op_by_op(monkeypatch):
    """A function that makes layers run each operation by itself from now on."""

    def switch():
        monkeypatch.setattr(arithmetic, "top_level_trace", object())
        monkeypatch.setattr(arithmetic, "is_within_staged", lambda: False)
        monkeypatch.setattr(arithmetic, "_jitted", lambda product: product)

    return switch


# With JAX 0.10 the tests have XLA use its older kernels, but these programs never do (``SINGLE_PRODUCTS``).
SAME_KERNELS = "--xla_cpu_use_fusion_emitters=false" not in os.environ.get("XLA_FLAGS", "")


def assert_same(one, other):
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal if SAME_KERNELS else near, one, other)


@pytest.mark.sampled
@every_layer
def test_compiled_arithmetic_gives_the_bits_of_single_operations(case, op_by_op):
    compiled, plain = case.make(plait.Rngs(0)), case.make(plait.Rngs(0))
    outputs = [compiled(case.x), compiled(case.x)]
    op_by_op()
    for output in outputs:
        assert_same(output, plain(case.x))
    mine, other = (pure(plait.state(layer)) for layer in (compiled, plain))
    assert_same(mine, other)


@every_layer
def test_what_is_traced_once_is_the_same_program(case, op_by_op):
    traced = lambda: str(jax.make_jaxpr(lambda x: case.make(plait.Rngs(0))(x))(case.x))
    program = traced()
    assert traced() == program
    op_by_op()
    assert traced() == program


@pytest.mark.sampled
@every_layer
@pytest.mark.parametrize("around", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_gradients_are_those_of_single_operations(case, around, op_by_op):
    """In a program, the parts of a gradient may be added in another order: those of one function first.

    Where a norm divides by little, that is more than the last digits; neither is nearer to the exact gradient.
    """
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(case.x)):
        pytest.skip("it has no gradient by its input")

    def total(x):
        return sum(jnp.sum(jnp.abs(y)) for y in jax.tree.leaves(case.make(plait.Rngs(0))(x)))

    found = around(jax.grad(total))(case.x)
    op_by_op()
    expected = around(jax.grad(lambda x: total(x)))(case.x)
    if around is jax.jit:
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), found, expected)
    else:
        assert_same(found, expected)


@pytest.mark.skipif(not arithmetic.KEEPS_NAMES, reason="JAX 0.11 changes the names of what is copied")
def test_a_program_traces_it_once():
    """Under all transforms of a program; eagerly they see single operations."""
    traced = []

    @arithmetic.arithmetic
    def double(x):
        traced.append(x)
        return x + x

    def thrice(x):
        return double(double(double(x))).sum()

    x = jnp.arange(3.0)
    both = lambda x: (jax.grad(thrice)(x), jax.vmap(thrice)(x[:, None]), jax.checkpoint(thrice)(x))
    gradient, each, total = jax.jit(both)(x)
    assert len(traced) == 2  # of shapes (3,) and (1,)
    np.testing.assert_array_equal(gradient, [8.0, 8.0, 8.0])
    np.testing.assert_array_equal(each, [0.0, 8.0, 16.0])
    assert total == 24.0
    traced.clear()
    np.testing.assert_array_equal(jax.grad(thrice)(x), gradient)
    assert len(traced) == 3


def test_a_given_product_is_called_as_it_is():
    calls = []

    def product(*args, **kwargs):
        calls.append(kwargs)
        return jax.lax.dot_general(*args, **kwargs)

    layer = plait.Linear(2, 3, dot_general=product, precision="highest", rngs=plait.Rngs(0))
    np.testing.assert_array_equal(layer(jnp.ones((1, 2))), layer(jnp.ones((1, 2))))
    assert calls == [{"precision": "highest"}] * 2


def test_an_eager_recurrent_layer_is_compiled_once():
    """Also for another layer of the same structure, and with new values."""
    rnn, other = (plait.RNN(plait.OptimizedLSTMCell(2, 3, rngs=plait.Rngs(seed))) for seed in range(2))
    x = jnp.ones((1, 4, 2))
    rnn(x)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    rnn.cell.dense_h.bias[...] = rnn.cell.dense_h.bias + 1
    compiled.clear()
    found = rnn(x), other(x)
    assert not compiled
    assert not np.array_equal(*found)


def _replacement(*args, **kwargs):
    raise RuntimeError("the replacement was called")


@pytest.mark.parametrize(
    ("make", "shape", "product"),
    [
        (lambda rngs: plait.Linear(4, 4, rngs=rngs), (2, 4), lax.dot_general),
        (lambda rngs: plait.Conv(4, 4, (1,), rngs=rngs), (2, 3, 4), lax.conv_general_dilated),
    ],
)
@pytest.mark.parametrize(
    "around", [lambda layer: layer, lambda layer: jax.jit(lambda x: layer(x))], ids=["eager", "jit"]
)
def test_products_whose_code_was_replaced_are_those_that_run(make, shape, product, around, monkeypatch):
    """qwix quantizes so; also where the layer has been compiled or traced before."""
    layer, x = make(plait.Rngs(0)), jnp.ones(shape)
    before = around(layer)(x)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the replacement was called"):
        patch.setattr(product, "__code__", _replacement.__code__)
        around(layer)(x)
    np.testing.assert_array_equal(around(layer)(x), before)
