"""Dynamic loss scaling, as of Micikevicius et al., 2017, arXiv:1710.03740."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import OptimizerError
from tests.nn.twins import some_input

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax needs JAX's own promotion


def make(**options):
    model = plait.Linear(3, 2, dtype=jnp.float16, rngs=plait.Rngs(0))
    return model, plait.Optimizer(model, optax.adam(0.1), wrt=plait.Param), plait.DynamicLossScale(**options)


@plait.jit
def step(model, optimizer, loss_scale, x, factor):
    grads = plait.grad(lambda model: loss_scale.scaled((model(x) ** 2).mean() * factor))(model)
    return loss_scale.update(optimizer, model, grads)


def arrays(*nodes):
    return [np.asarray(v[...]) for _, v in plait.iter_graph(list(nodes)) if isinstance(v, plait.Variable)]


GOOD, BAD = jnp.float16(1.0), jnp.float16(jnp.inf)


@pytest.mark.slow
def test_good_steps_are_those_of_the_optimizer_alone():
    """A power of two as the scale changes no bit of the gradients."""
    x = some_input(4, 3)
    model, optimizer, loss_scale = make(initial=8.0)
    plain, plain_optimizer, _ = make()
    for _ in range(3):
        assert step(model, optimizer, loss_scale, x, GOOD)
        plain_optimizer.update(plain, plait.grad(lambda model: (model(x) ** 2).mean().astype(jnp.float32))(plain))
    for mine, other in zip(arrays(model, optimizer), arrays(plain, plain_optimizer), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_a_step_with_gradients_that_are_not_finite_changes_nothing_but_the_scale():
    model, optimizer, loss_scale = make(initial=8.0)
    x = some_input(4, 3)
    step(model, optimizer, loss_scale, x, GOOD)
    before = arrays(model, optimizer)
    assert not step(model, optimizer, loss_scale, x, BAD)
    for mine, other in zip(arrays(model, optimizer), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert (loss_scale.scale[...], loss_scale.good_steps[...], optimizer.step[...]) == (4.0, 0, 1)
    assert step(model, optimizer, loss_scale, x, GOOD)
    assert optimizer.step[...] == 2
    assert (model.kernel[...] != before[1]).all()


def test_the_scale_grows_after_good_steps_in_a_row_and_shrinks_at_once():
    model, optimizer, loss_scale = make(initial=8.0, growth_interval=2, minimum=4.0, maximum=16.0)
    scales = []
    for factor in [GOOD, GOOD, GOOD, BAD, GOOD, BAD, BAD, GOOD, GOOD, GOOD, GOOD, GOOD, GOOD]:
        step(model, optimizer, loss_scale, some_input(4, 3), factor)
        scales.append(float(loss_scale.scale[...]))
    assert scales == [8, 16, 16, 8, 8, 4, 4, 4, 8, 8, 16, 16, 16]
    assert optimizer.step[...] == 10


def test_it_keeps_gradients_that_float16_cannot_hold():
    """A gradient of 2**-26 is zero in float16, and is there with a scale of 2**15."""
    weight = plait.Param(jnp.float32(1.0))

    def loss(weight):
        return weight[...].astype(jnp.float16) * jnp.float16(2.0**-13) * jnp.float16(2.0**-13)

    assert plait.grad(lambda weight: loss(weight).astype(jnp.float32))(weight)[...] == 0
    loss_scale = plait.DynamicLossScale()
    grads = loss_scale.unscaled(plait.grad(lambda weight: loss_scale.scaled(loss(weight)))(weight))
    assert grads[...] == 2.0**-26


def test_a_scale_that_is_too_large_for_float16_finds_its_way_down():
    model, optimizer, loss_scale = make(initial=2.0**20)
    taken = [bool(step(model, optimizer, loss_scale, some_input(4, 3), GOOD)) for _ in range(12)]
    assert taken == sorted(taken)
    assert not taken[0]
    assert taken[-1]


def test_an_optimizer_that_keeps_its_model():
    model = plait.Linear(3, 2, rngs=plait.Rngs(0))
    optimizer, loss_scale = plait.ModelAndOptimizer(model, optax.sgd(0.5)), plait.DynamicLossScale()
    grads = plait.grad(lambda model: loss_scale.scaled(model(jnp.ones(3)).sum()))(model)
    assert loss_scale.update(optimizer, model, grads)
    np.testing.assert_allclose(model.bias, [-0.5, -0.5])


def test_gradients_of_another_model_change_nothing():
    model, optimizer, loss_scale = make()
    before = arrays(model, optimizer, loss_scale)
    other = plait.state(plait.Linear(3, 3, rngs=plait.Rngs(0)))
    with pytest.raises(OptimizerError, match="shape"):
        loss_scale.update(optimizer, model, other)
    for mine, old in zip(arrays(model, optimizer, loss_scale), before, strict=True):
        np.testing.assert_array_equal(mine, old)


def test_one_value_that_is_not_finite_is_enough():
    model, optimizer, loss_scale = make()
    grads = jax.tree.map(jnp.ones_like, plait.state(model, plait.Param))
    for bad in (jnp.nan, -jnp.inf):
        one = plait.clone(grads)
        one["bias"][0] = bad
        assert not loss_scale.update(optimizer, model, one)
    assert loss_scale.update(optimizer, model, grads)


@pytest.mark.parametrize("factor", [GOOD, BAD])
def test_an_array_attribute_is_kept_by_a_skipped_step(factor):
    model = plait.Dict(w=jnp.array([1.0, 2.0]))
    optimizer = plait.Optimizer(model, optax.sgd(0.5), wrt=...)
    grads = plait.State({"w": jnp.full(2, factor.astype(jnp.float32))})
    loss_scale = plait.DynamicLossScale(initial=1.0)
    assert bool(loss_scale.update(optimizer, model, grads)) == bool(jnp.isfinite(factor))
    assert model.w.tolist() == ([0.5, 1.5] if jnp.isfinite(factor) else [1.0, 2.0])


def test_float64_gradients_are_divided_in_float64():
    with jax.enable_x64(True):
        model = plait.Dict(w=plait.Param(jnp.asarray(1.0, jnp.float64)))
        optimizer = plait.Optimizer(model, optax.sgd(1.0), wrt=plait.Param)
        scale = plait.DynamicLossScale(initial=8.0)

        def grads(value):
            return jax.tree.map(lambda _: jnp.asarray(value, jnp.float64), plait.state(model))

        assert float(scale.unscaled(grads((1 + 1e-12) * 8))["w"][...]) == 1 + 1e-12
        assert scale.scaled(jnp.asarray(1e300, jnp.float64)) == 8e300
        assert scale.update(optimizer, model, grads(8e40))
        assert float(model.w[...]) == -1e40
