"""``lax_map``: numbers, operands, batches, errors. (rules X20, U28; ask 7)"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from tests.sampling import slow_but

XS = jnp.arange(10.0).reshape(5, 2)
BATCHES = (None, 0, 1, 2, 5, 7)
each_batch = pytest.mark.parametrize("batch_size", slow_but([None, 2], BATCHES))


class Block(plait.Module):
    def __init__(self, rngs):
        self.linear = plait.Linear(2, 3, rngs=rngs)
        self.norm = plait.BatchNorm(3, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)
        self.calls = plait.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.slow
@given(st.integers(0, 7), st.sampled_from(BATCHES))
def test_arrays_give_what_jax_gives(size, batch_size):
    """X20: any pytree in and out, a remainder, no slices at all."""
    xs = {"a": jnp.arange(size * 3.0).reshape(size, 3), "b": np.arange(size)}

    def f(x):
        return x["a"] * 2, [x["a"].sum(), x["b"] + 1]

    expected = jax.lax.map(f, xs, batch_size=batch_size)
    jax.tree.map(np.testing.assert_array_equal, plait.lax_map(f, xs, batch_size=batch_size), expected)


@pytest.mark.parametrize("jit", slow_but([True], [False, True]))
def test_operands_hand_on_what_was_written_as_in_a_python_loop(jit):
    """X20: statistics, counters and random streams, from call to call."""
    xs = jnp.arange(24.0).reshape(4, 3, 2)
    mapped, looped = Block(plait.Rngs(0)), Block(plait.Rngs(0))
    run = functools.partial(plait.lax_map, lambda x, model: model(x))
    found = (plait.jit(run) if jit else run)(xs, mapped)
    expected = jnp.stack([looped(x) for x in xs])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        plait.to_pure_dict(plait.state(mapped, plait.BatchStat)),
        plait.to_pure_dict(plait.state(looped, plait.BatchStat)),
    )
    assert int(mapped.calls[...]) == 4
    assert int(mapped.drop.rngs.count[...]) == int(looped.drop.rngs.count[...]) == 4


@each_batch
@pytest.mark.parametrize("graph_updates", slow_but([True], [True, False]))
def test_gradients_reach_operands_and_slices(batch_size, graph_updates):
    """X20: the same as those of jax.lax.map."""
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))

    def loss(model, xs):
        f = functools.partial(plait.lax_map, batch_size=batch_size, graph_updates=graph_updates)
        return (f(lambda x, model: jnp.tanh(model(x)), xs, model) ** 2).sum()

    def pure(weights, xs):
        out = jax.lax.map(lambda x: jnp.tanh(x @ weights[0] + weights[1]), xs, batch_size=batch_size)
        return (out**2).sum()

    grads, dx = plait.grad(loss, argnums=(0, 1))(model, XS)
    expected, expected_dx = jax.grad(pure, argnums=(0, 1))((model.kernel[...], model.bias[...]), XS)
    np.testing.assert_allclose(grads.kernel[...], expected[0], rtol=1e-5)
    np.testing.assert_allclose(grads.bias[...], expected[1], rtol=1e-5)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-5)


@each_batch
def test_the_program_is_that_of_jax(batch_size):
    """Ask 7: what is only read is not carried through the loop."""
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    lifted = plait.make_jaxpr(lambda m, xs: plait.lax_map(lambda x, m: m(x), xs, m, batch_size=batch_size))(model, XS)
    pure = jax.make_jaxpr(lambda w, b, xs: jax.lax.map(lambda x: x @ w + b, xs, batch_size=batch_size))(
        model.kernel[...], model.bias[...], XS
    )

    def loops(jaxpr):
        return re.findall(r"length=\d+|num_carry=\d+|num_consts=\d+", str(jaxpr))

    assert loops(lifted) == loops(pure)


@pytest.mark.slow
@each_batch
def test_modules_among_the_slices_are_stacked(batch_size):
    """X20: each call has a layer of its own, and what it writes stays there; also what is new."""
    norms = plait.vmap(lambda key: plait.BatchNorm(2, rngs=plait.Rngs(key)))(jax.random.split(jax.random.key(0), 5))
    batches = jnp.arange(30.0).reshape(5, 3, 2)

    def f(pair):
        norm, x = pair
        norm.seen = plait.Variable(x.sum())
        return norm(x)

    out = plait.lax_map(f, (norms, batches), batch_size=batch_size)
    expected = plait.BatchNorm(2, rngs=plait.Rngs(0))
    np.testing.assert_allclose(out[3], expected(batches[3]), rtol=1e-5)
    np.testing.assert_allclose(norms.mean[3], expected.mean[...], rtol=1e-5)
    np.testing.assert_allclose(norms.seen[...], batches.sum((1, 2)))


@pytest.mark.slow
@each_batch
def test_new_modules_come_out_stacked(batch_size):
    """U18."""
    keys = jax.random.split(jax.random.key(0), 5)
    made = plait.lax_map(lambda key: plait.Linear(2, 3, rngs=plait.Rngs(key)), keys, batch_size=batch_size)
    expected = plait.Linear(2, 3, rngs=plait.Rngs(keys[4]))
    np.testing.assert_allclose(made.kernel[4], expected.kernel[...], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", slow_but([2], [0, 1, 2, 3, 5]))
@pytest.mark.parametrize("graph_updates", slow_but([True], [True, False]))
def test_every_slice_of_a_batch_draws_for_itself(batch_size, graph_updates):
    """R7: the streams are split for a batch, and restored behind the draw."""
    drop = plait.Dropout(0.5, rngs=plait.Rngs(0))

    def run():
        f = functools.partial(plait.lax_map, batch_size=batch_size, graph_updates=graph_updates)
        return f(lambda x, drop: drop(x), jnp.ones((5, 40)), drop)

    masks = [tuple(row.tolist()) for _ in range(2) for row in run()]
    assert len(set(masks)) == 10
    assert drop.rngs.key.shape == ()


def test_axis_names_follow_the_slices():
    """V40: inside, a slice lacks the name of the leading axis; in a batch, too."""
    names = []
    stacked = plait.Dict(w=plait.Param(XS, out_sharding=("layers", "features")))
    for batch_size in (None, 2):
        plait.lax_map(lambda node: names.append(node.w.out_sharding), stacked, batch_size=batch_size)
    assert set(names) == {("features",)}
    assert stacked.w.out_sharding == ("layers", "features")


def test_operands_may_be_anything():
    """X20: containers, numbers, static values, variables."""
    scale = plait.Variable(jnp.array(3.0))
    out = plait.lax_map(
        lambda x, parts, power, label: (parts["scale"] * x**power) if label == "on" else x,
        XS,
        {"scale": scale},
        2,
        "on",
    )
    np.testing.assert_allclose(out, 3 * XS**2)
