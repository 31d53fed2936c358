"""Gradients over parts of a batch are those of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.training import accumulated_value_and_grad
from tests.compare import assert_same
from tests.sampling import slow_but

LENGTHS = jnp.array([5, 1, 4, 2, 5, 3, 1, 5])


def batch():
    tokens = jax.random.normal(jax.random.key(0), (8, 5, 3))
    return {"x": tokens, "mask": (jnp.arange(5)[None] < LENGTHS[:, None]).astype(jnp.float32)}


def totals(model, batch):
    losses = (model(batch["x"]) ** 2).sum(-1)
    return (losses * batch["mask"]).sum(), batch["mask"].sum()


def mean(model, batch):
    total, weight = totals(model, batch)
    return total / weight


@pytest.mark.sampled
@pytest.mark.parametrize("parts", slow_but([2, 8], [1, 2, 4, 8]))
@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_it_is_the_gradient_of_the_mean_over_tokens(parts, transform):
    model = plait.Linear(3, 4, rngs=plait.Rngs(0))
    value, grads = transform(accumulated_value_and_grad(totals, parts=parts))(model, batch())
    expected, wanted = plait.value_and_grad(mean)(model, batch())
    assert_same(value, expected, {"rtol": 1e-6, "atol": 1e-6})
    assert_same(plait.to_pure_dict(grads), plait.to_pure_dict(wanted), {"rtol": 1e-5, "atol": 1e-6})


@pytest.mark.slow
def test_the_mean_of_the_means_of_the_parts_is_another_number():
    """The known wrong answer: parts with few tokens would count as much as those with many."""
    model, whole = plait.Linear(3, 4, rngs=plait.Rngs(0)), batch()
    halves = [jax.tree.map(lambda leaf, i=i: leaf[4 * i : 4 * i + 4], whole) for i in range(2)]
    wrong = sum(mean(model, half) for half in halves) / 2
    right, _ = accumulated_value_and_grad(totals, parts=2)(model, whole)
    assert abs(float(wrong) - float(mean(model, whole))) > 1e-3
    assert abs(float(right) - float(mean(model, whole))) < 1e-6


def test_what_the_model_writes_is_handed_on():
    class Counting(plait.Linear):
        def __init__(self):
            super().__init__(3, 4, rngs=plait.Rngs(0))
            self.seen = plait.BatchStat(jnp.zeros((), jnp.int32))

        def __call__(self, x):
            self.seen.value += x.shape[0]
            return super().__call__(x)

    model = Counting()
    plait.jit(accumulated_value_and_grad(totals, parts=4))(model, batch())
    assert model.seen.value == 8


def test_small_dtypes_are_summed_in_wide_ones():
    model = plait.Linear(3, 4, param_dtype=jnp.bfloat16, dtype=jnp.float32, rngs=plait.Rngs(0))
    _, grads = accumulated_value_and_grad(totals, parts=8)(model, batch())
    _, wanted = plait.value_and_grad(mean)(model, batch())
    assert grads["kernel"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(grads["kernel"].value), np.float32(wanted["kernel"].value), rtol=1e-2)


def test_only_what_is_asked_for_is_differentiated():
    model = plait.Linear(3, 4, rngs=plait.Rngs(0))
    _, grads = accumulated_value_and_grad(totals, parts=2, wrt=plait.PathContains("bias"))(model, batch())
    assert list(plait.to_pure_dict(grads)) == ["bias"]


def test_a_batch_without_weight_has_no_gradient():
    """The mean of nothing is 0, so that padding alone does not end a run."""
    model = plait.Linear(3, 4, rngs=plait.Rngs(0))
    nothing = lambda model, part: (0.0 * (model(part["x"]) ** 2).sum(), jnp.zeros(()))
    value, grads = accumulated_value_and_grad(nothing, parts=2)(model, {"x": jnp.ones((4, 3))})
    assert float(value) == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
def test_double_precision_stays_double():
    with jax.enable_x64(True):
        model = plait.Linear(3, 4, param_dtype=jnp.float64, dtype=jnp.float64, rngs=plait.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (4, 3), jnp.float64)
        square = lambda model, part: ((model(part) ** 2).sum(), jnp.float64(part.shape[0]))
        value, grads = accumulated_value_and_grad(square, parts=2)(model, x)
        wanted, wanted_grads = plait.value_and_grad(lambda model: (model(x) ** 2).sum() / 4)(model)
        assert (value.dtype, grads["kernel"].dtype) == (jnp.float64, jnp.float64)
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        np.testing.assert_allclose(grads["kernel"][...], wanted_grads["kernel"][...], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("number", [int, float, jnp.int32], ids=lambda number: number.__name__)
def test_the_weight_may_be_any_number(number):
    """Such as the length of the part."""
    model, x = plait.Linear(3, 4, rngs=plait.Rngs(0)), jnp.ones((4, 3))
    of_lengths = lambda model, part: ((model(part) ** 2).sum(), number(part.shape[0]))
    value, _ = plait.jit(accumulated_value_and_grad(of_lengths, parts=2))(model, x)
    np.testing.assert_allclose(value, (model(x) ** 2).sum() / 4, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_a_part_of_weight_zero_adds_nothing_even_if_it_is_nan(transform):
    """Such a part is all padding, and a mean over its tokens, inside the loss, is 0 / 0."""

    def normalised(model, batch):
        losses = (model(batch["x"]) ** 2).sum(-1) * batch["mask"]
        return losses.sum() / batch["mask"].sum() * batch["mask"].sum(), batch["mask"].sum()

    model, whole = plait.Linear(3, 4, rngs=plait.Rngs(0)), batch()
    padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf)]), whole)
    expected, wanted = accumulated_value_and_grad(normalised, parts=1)(model, whole)
    value, grads = transform(accumulated_value_and_grad(normalised, parts=2))(model, padded)
    assert_same(value, expected, {"rtol": 1e-6, "atol": 1e-6})
    assert_same(plait.to_pure_dict(grads), plait.to_pure_dict(wanted), {"rtol": 1e-5, "atol": 1e-6})


def test_a_nan_of_a_part_that_counts_stays():
    model = plait.Linear(3, 4, rngs=plait.Rngs(0))
    spoilt = batch() | {"x": batch()["x"].at[0, 0, 0].set(jnp.nan)}
    assert jnp.isnan(accumulated_value_and_grad(totals, parts=2)(model, spoilt)[0])


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_a_sharded_batch_is_split_on_meshes_of_both_kinds(kind, transform):
    model = plait.Linear(3, 4, rngs=plait.Rngs(0))
    expected, wanted = accumulated_value_and_grad(totals, parts=2)(model, batch())
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        sharded = jax.device_put(batch(), jax.NamedSharding(mesh, jax.P("data")))
        value, grads = transform(accumulated_value_and_grad(totals, parts=2))(model, sharded)
    assert_same(jax.device_get(value), expected, {"rtol": 1e-6, "atol": 1e-6})
    assert_same(plait.to_pure_dict(jax.device_get(grads)), plait.to_pure_dict(wanted), {"rtol": 1e-5, "atol": 1e-6})


@pytest.mark.slow
def test_gradients_of_explicitly_sharded_parameters_are_summed_where_they_are():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    plain = plait.Linear(3, 4, rngs=plait.Rngs(0))
    expected, wanted = accumulated_value_and_grad(totals, parts=2)(plain, batch())
    with jax.set_mesh(mesh):
        model = plait.Linear(3, 4, kernel_metadata={"out_sharding": (None, "model")}, rngs=plait.Rngs(0))
        sharded = jax.device_put(batch(), jax.NamedSharding(mesh, jax.P("data")))
        value, grads = plait.jit(accumulated_value_and_grad(totals, parts=2))(model, sharded)
        assert grads["kernel"].sharding.spec == jax.P(None, "model")
    assert_same(jax.device_get(value), expected, {"rtol": 1e-6, "atol": 1e-6})
    assert_same(plait.to_pure_dict(jax.device_get(grads)), plait.to_pure_dict(wanted), {"rtol": 1e-5, "atol": 1e-6})
