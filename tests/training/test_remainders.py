"""O4 to O8, O12: metrics and averages stay right however much they add, in every dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import checkpoint
from plait.core.variables.variable_kinds import Remainder
from plait.training import accumulated_value_and_grad, metrics
from plait.training.remainders import as_number, carried

NARROW = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]
HITS = {"logits": jnp.array([[9.0, 0.0]]), "labels": jnp.array([0]), "values": jnp.ones(1)}
HALF = {  # a metric that has seen two examples for each of a number, one right and one wrong
    "count": lambda number: jnp.uint32(2 * number),
    "total": jnp.float32,
    "mean": lambda _: jnp.float32(0.5),
    "matrix": lambda number: jnp.array([[number, 0], [number, 0]], jnp.int32),
}
SPREAD = {"count": HALF["count"], "m2": lambda number: jnp.float32(2 * number)}  # variance 1 around 0


def half(number, added):
    return (number + added) / (2 * number + added)


def spread(number, added):
    return np.sqrt((2 * number + 4 * added) / (2 * number + added))


CASES = {  # a metric, what it has seen, further examples, and the result
    "Average": (metrics.Average, HALF, HITS, half, float),
    "Welford": (metrics.Welford, HALF, HITS, half, lambda found: float(found.mean)),
    "Welford's deviation": (
        metrics.Welford, SPREAD, {"values": jnp.array([2.0, -2.0])},
        spread, lambda found: float(found.standard_deviation),
    ),
    "Accuracy": (metrics.Accuracy, HALF, HITS, half, float),
    "Precision": (lambda: metrics.Precision(2, average="micro"), HALF, HITS, half, float),
    "Recall": (lambda: metrics.Recall(2, average="micro"), HALF, HITS, half, float),
    "F1": (lambda: metrics.F1(2, average="micro"), HALF, HITS, half, float),
    "ConfusionMatrix": (
        lambda: metrics.ConfusionMatrix(2), HALF, HITS,
        lambda number, added: min(number + added, 2**31 - 1), lambda found: int(found[0, 0]),
    ),
}  # fmt: skip


def test_every_metric_has_a_case():
    kinds = [each for each in vars(metrics).values() if isinstance(each, type) and issubclass(each, metrics.Metric)]
    assert {kind.__name__ for kind in kinds} - {"Metric", "MultiMetric"} <= set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2**24, 2**31 - 2**10])
@pytest.mark.parametrize("name", CASES)
def test_a_metric_goes_on_where_its_variables_are_full(name, number):
    """O12: each batch is less than half a rounding of what there is, and all together are seen in the result."""
    make, seen, examples, expected, result = CASES[name]
    metric, updates, copies = make(), 2**14, max(number // 2**26, 1)
    for attribute, value in seen.items():
        if hasattr(metric, attribute):
            getattr(metric, attribute).value = value(number)
    batch = {key: jnp.repeat(value, copies, 0) for key, value in examples.items()}

    def update(_, metric):
        metric.update(**batch)
        return metric

    metric = plait.jit(lambda metric: plait.fori_loop(0, updates, update, metric))(metric)
    added = updates * copies * len(examples["values"])
    np.testing.assert_allclose(result(metric.compute()), expected(number, added), rtol=2e-6)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8])
def test_a_count_is_exact_after_any_number_of_carries(dtype):
    count, rest = jnp.zeros((), dtype), jnp.zeros(())
    for number in range(1, 41):
        count, rest = carried(count, count + jnp.asarray(60, dtype), rest)
        assert float(as_number(count, rest)) == 60 * number
        assert count >= min(60, jnp.iinfo(dtype).max // 2 + 1)


@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
def test_a_sum_beyond_2_to_the_24_is_read_where_it_was(transform):
    """O5: ``total`` and ``count``, as programs read them, and a count that a program wrote as int32."""
    metric, update = metrics.Average(), transform(lambda metric, values: metric.update(values=values))
    metric.total.value, metric.count.value = jnp.float32(2**24), jnp.int32(2**31 - 10)
    for _ in range(50):
        update(metric, jnp.ones(1))
    assert float(metric.total[...]) == 2**24 + 50
    assert int(metric.count[...]) == 2**31 + 40
    metric.total.value, metric.count.value = jnp.float32(0), jnp.uint32(0)
    update(metric, jnp.array([1.0, 2.0]))
    assert float(metric.compute()) == 1.5


@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_a_value_that_is_not_finite_is_not_lost(value):
    metric = metrics.Average()
    metric.update(values=jnp.array([value]))
    metric.update(values=jnp.ones(1))
    np.testing.assert_array_equal(metric.compute(), value)


def narrow_model(dtype, value):
    return plait.Dict(w=plait.Param(jnp.full(3, value, dtype)))


@pytest.mark.parametrize("transform", [lambda f: f, plait.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("decay", [0.99, lambda step: jnp.float32(0.99)], ids=["constant", "schedule"])
@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.__name__)
def test_an_average_in_a_narrow_dtype_moves_as_in_float32(dtype, decay, transform):
    """O4: alone, 0.99 of 1 would be 1. What ``apply_to`` returns follows in the dtype of the model."""
    model = narrow_model(dtype, 1)
    ema = plait.EMA(model, decay)
    averaged, update = ema.apply_to(model), transform(lambda ema, model: ema.update(model))
    model.w[...] = jnp.zeros(3, dtype)
    for _ in range(20):
        update(ema, model)
    exact = jnp.float32(0.99**20)
    np.testing.assert_allclose(ema.params["w"][...].astype(jnp.float32) + ema.rest["w"][...], exact, rtol=1e-5)
    np.testing.assert_array_equal(averaged.w[...], exact.astype(dtype))


def test_an_average_in_float32_has_no_remainder():
    assert not hasattr(plait.EMA(narrow_model(jnp.float32, 1), 0.9), "rest")


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.__name__)
def test_gradients_and_scaled_losses_in_a_narrow_dtype_are_summed_in_float32(dtype):
    model, parts = narrow_model(dtype, 1), 64
    loss = lambda model, part: ((model.w[...].astype(jnp.float32) * part[0]).sum(), part.shape[0])
    _, grads = accumulated_value_and_grad(loss, parts=parts)(model, jnp.full((parts, 3), 0.5))
    np.testing.assert_array_equal(grads["w"][...].astype(jnp.float32), 0.5)
    scale = plait.DynamicLossScale(4.0)
    assert scale.scaled(jnp.asarray(0.5, dtype)).dtype == jnp.float32
    np.testing.assert_array_equal(scale.unscaled(grads)["w"][...].astype(jnp.float32), 0.125)


OLD = {  # objects, and the attributes that their checkpoints had in earlier versions
    "Average": (metrics.Average, {"total": jnp.float32(6), "count": jnp.int32(4)}, lambda m: m.compute(), 1.5),
    "ConfusionMatrix": (
        lambda: metrics.ConfusionMatrix(2), {"matrix": jnp.array([[3, 0], [1, 0]], jnp.int32)},
        lambda m: m.compute(), [[3, 0], [1, 0]],
    ),
    "EMA": (
        lambda: plait.EMA(narrow_model(jnp.bfloat16, 0), 0.5),
        {"params": {"w": plait.Param(jnp.ones(3, jnp.bfloat16))}},
        lambda ema: ema.apply_to(narrow_model(jnp.bfloat16, 0)).w[...].astype(jnp.float32), [1, 1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("abstract", [False, True], ids=["values", "shapes"])
@pytest.mark.parametrize("name", OLD)
def test_a_checkpoint_without_remainders_is_read(name, abstract, tmp_path):
    """O12"""
    make, stored, result, expected = OLD[name]
    path = checkpoint.save(tmp_path / "old", {"metric": stored})
    own = plait.eval_shape(make) if abstract else make()
    if not abstract:
        own_rest = plait.state(own, Remainder)
        plait.update(own, jax.tree.map(jnp.ones_like, own_rest))
    checkpoint.restore(path, {"metric": own})
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(plait.state(own, Remainder)))
    np.testing.assert_array_equal(result(own), expected)
