import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import TraceContextError
from plait.training.ema import EMA
from tests.nn.twins import flax_nnx, pure, some_input, users_promotion


def build(lib):
    rngs = lib.Rngs(0)
    return lib.Sequential(lib.Linear(3, 4, rngs=rngs), lib.BatchNorm(4, rngs=rngs))


def train(lib, kind, only):
    """Averages over three changes of the parameters and statistics."""
    model = build(lib)
    ema = kind(model, 0.9, only=only)
    for seed in range(3):
        model.layers[0].kernel.set_value(some_input(3, 4, seed=seed))
        model(some_input(8, 3, seed=seed))
        ema.update(model)
    return model, ema


@pytest.mark.oracle
@pytest.mark.parametrize("only", ["everything", "Param", "BatchStat"])
def test_averages_are_flax_s(only):
    nnx = flax_nnx()

    def filter_of(lib):
        return ... if only == "everything" else getattr(lib, only)

    with users_promotion():
        theirs, their_ema = train(nnx, nnx.EMA, filter_of(nnx))
        applied = their_ema.apply_to(theirs)
    ours, our_ema = train(plait, EMA, filter_of(plait))
    mine, other = pure(plait.state(our_ema)), pure(nnx.state(their_ema), nnx)
    assert list(mine) == list(other)
    for path in mine:
        np.testing.assert_allclose(mine[path], other[path], rtol=1e-5, atol=1e-6, err_msg=path)
    mine, other = pure(plait.state(our_ema.apply_to(ours))), pure(nnx.state(applied), nnx)
    for path in mine:
        np.testing.assert_allclose(mine[path], other[path], rtol=1e-5, atol=1e-6, err_msg=path)


def test_apply_to_shares_what_is_not_averaged_and_leaves_the_model_alone():
    model = build(plait)
    ema = EMA(model, 0.5, only=plait.PathContains("kernel"))
    model.layers[0].kernel[...] = jnp.zeros((3, 4))
    averaged = ema.apply_to(model)
    assert averaged is not model
    assert averaged.layers[0].bias is model.layers[0].bias
    assert averaged.layers[0].kernel is not model.layers[0].kernel
    np.testing.assert_array_equal(model.layers[0].kernel, jnp.zeros((3, 4)))


def test_averages_have_buffers_of_their_own():
    model = build(plait)
    ema = EMA(model, 0.5)
    assert ema.params["layers"][0]["kernel"].value is not model.layers[0].kernel.value


def test_jit_agrees_with_eager():
    model, eager, compiled = build(plait), EMA(build(plait), 0.9), EMA(build(plait), 0.9)
    model.layers[0].bias[...] = jnp.ones(4)
    step = plait.jit(lambda ema, model: ema.update(model))
    for _ in range(2):
        eager.update(model)
        step(compiled, model)
    for a, b in zip(jax.tree.leaves(plait.state(eager)), jax.tree.leaves(plait.state(compiled)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_counters_and_keys_are_taken_over():
    model = plait.Dropout(0.5, rngs=plait.Rngs(0))
    ema = EMA(model, 0.9)
    model(jnp.ones(3))
    ema.update(model)
    assert int(ema.params["rngs"]["count"][...]) == 1


def test_a_state_is_as_good_as_a_model():
    model = build(plait)
    ema = EMA(plait.state(model, plait.Param), 0.5)
    model.layers[0].bias[...] = jnp.ones(4)
    ema.update(plait.state(model))
    assert ema.apply_to(model).layers[0].bias[...].tolist() == [0.5] * 4


def test_averages_from_outside_of_a_trace_are_refused():
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    ema = EMA(model, 0.5)
    before = jax.tree.leaves(plait.state(ema))
    with pytest.raises(TraceContextError, match=r"change the value of"):
        plait.jit(lambda model: ema.update(model))(model)
    assert all(a is b for a, b in zip(jax.tree.leaves(plait.state(ema)), before, strict=True))


@pytest.mark.oracle
@pytest.mark.parametrize("jit", [False, True])
def test_a_model_with_the_averages_follows_them_as_in_flax(jit):
    results = []
    for nnx in (plait, flax_nnx()):
        model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        ema = nnx.EMA(model, decay=0.5)
        averaged = ema.apply_to(model)
        assert averaged.kernel is ema.params["kernel"]
        model.kernel[...] = jnp.zeros((2, 3))
        move = nnx.jit(lambda ema, model: ema.update(model)) if jit else lambda ema, model: ema.update(model)
        move(ema, model)
        assert averaged.kernel is ema.params["kernel"]
        results.append(averaged.kernel[...])
        assert model.kernel[...].tolist() == [[0.0] * 3] * 2
    np.testing.assert_array_equal(*results)


def test_a_clone_of_it_does_not_follow():
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    ema = EMA(model, decay=0.5)
    kept = plait.clone(ema.apply_to(model))
    before = kept.kernel[...]
    model.kernel[...] = jnp.zeros((2, 3))
    ema.update(model)
    np.testing.assert_array_equal(kept.kernel, before)


def test_a_weak_type_stays_weak():
    """As in Flax: a parameter of ``jnp.full`` takes the dtype of what it meets, and so does its average."""
    model = plait.Dict(w=plait.Param(jnp.full(2, 0.5)))
    ema = plait.EMA(model, 0.5)
    plait.jit(lambda ema, model: ema.update(model))(ema, model)
    assert model.w.value.weak_type
    assert ema.params["w"].value.weak_type


@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_a_schedule_gives_the_decay_of_each_update(transform):
    """O4, with the numbers of a loop in NumPy."""
    model = plait.Linear(1, 1, rngs=plait.Rngs(0))
    ema = EMA(model, plait.training.warm_up_decay(0.3))
    expected, update = np.asarray(model.kernel[...], np.float64), transform(lambda ema, model: ema.update(model))
    for step in range(5):
        model.kernel[...] = jnp.full((1, 1), float(step))
        update(ema, model)
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        np.testing.assert_allclose(ema.apply_to(model).kernel[...], expected, rtol=1e-5)
    assert int(ema.step[...]) == 5


def test_a_schedule_of_optax_moves_an_average_in_bfloat16():
    optax = pytest.importorskip("optax")
    model = plait.Linear(1, 1, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    model.kernel[...] = jnp.zeros((1, 1), jnp.bfloat16)
    ema = EMA(model, optax.constant_schedule(0.999))
    model.kernel[...] = jnp.ones((1, 1), jnp.bfloat16)
    ema.update(model)
    np.testing.assert_allclose(ema.params["kernel"][...].astype(jnp.float32), 0.001, rtol=1e-2)


@pytest.mark.parametrize("decay", [0.5, plait.training.warm_up_decay(0.5)], ids=["constant", "schedule"])
def test_it_skips_the_steps_that_loss_scaling_skips(decay):
    optax = pytest.importorskip("optax")
    model = plait.Linear(2, 1, rngs=plait.Rngs(0))
    optimizer, loss_scale = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param), plait.DynamicLossScale(8.0)
    ema = EMA(model, decay)

    @plait.jit
    def step(model, optimizer, loss_scale, ema, factor):
        grads = plait.grad(lambda model: loss_scale.scaled(model(jnp.ones(2)).sum()) * factor)(model)
        ema.update(model, when=loss_scale.update(optimizer, model, grads))

    step(model, optimizer, loss_scale, ema, 1.0)
    before = jax.tree.map(jnp.copy, plait.state(ema))
    step(model, optimizer, loss_scale, ema, jnp.inf)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(plait.state(ema)), strict=True):
        np.testing.assert_array_equal(old, new)
    step(model, optimizer, loss_scale, ema, 1.0)
    assert not np.array_equal(before["params"]["kernel"][...], ema.params["kernel"][...])
