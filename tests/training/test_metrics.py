import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.core.variables.variable_kinds import Remainder
from plait.training import metrics
from plait.training.metrics import Accuracy, Average, Metric, MetricState, MultiMetric, Statistics, Welford
from tests.nn.twins import flax_nnx, some_input, users_promotion

VALUES = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=4)
BATCHES = st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=3)


def feed(metric, batches):
    for values, masked in batches:
        mask = {"mask": jnp.arange(len(values)) % 2 == 0} if masked else {}
        metric.update(values=jnp.asarray(values, jnp.float32), **mask)
    return metric.compute()


@pytest.mark.oracle
@settings(max_examples=10)
@given(BATCHES)
def test_average_is_flax_s(batches):
    with users_promotion():
        expected = feed(flax_nnx().metrics.Average(), batches)
    np.testing.assert_allclose(feed(Average(), batches), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
@settings(max_examples=10)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_welford_is_flax_s(batches):
    batches = [(values, False) for values in batches]  # Flax ignores the mask here
    with users_promotion():
        expected = feed(flax_nnx().metrics.Welford(), batches)
    found = feed(Welford(), batches)
    for name in ("mean", "standard_error_of_mean", "standard_deviation"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.oracle
@pytest.mark.parametrize("jit", [False, True])
def test_the_state_of_welford_is_flax_s(jit):
    """To a rounding: plait keeps what Flax's sums round off. (O12)"""
    nnx, found = flax_nnx(), []
    for lib in (plait, nnx):
        metric = lib.metrics.Welford("loss")
        update = lib.jit(lambda metric, x: metric.update(loss=x)) if jit else lambda metric, x: metric.update(loss=x)
        with users_promotion():
            for number in range(3):
                update(metric, (1 + number) * some_input(5, 3, seed=number))
        found.append([value[...] for value in (metric.count, metric.mean, metric.m2)])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=3e-7)


@pytest.mark.parametrize("metric", [Average, Welford])
def test_one_value_counts_as_often_as_the_mask_says(metric):
    """As Flax's Average: the loss of a batch, for each of its samples."""
    metric = metric()
    metric.update(values=jnp.float32(0.5), mask=jnp.array([1, 1, 0, 1, 0]))
    metric.update(values=jnp.float32(1.5), mask=jnp.array([1, 0]))
    result = metric.compute()
    assert float(result.mean if isinstance(result, Statistics) else result) == 0.75
    assert int(metric.count[...]) == 4


@given(VALUES, st.integers(1, 3))
@settings(max_examples=10)
def test_welford_does_not_depend_on_the_cut(values, size):
    whole, parts = Welford(), Welford()
    whole.update(values=jnp.asarray(values))
    for start in range(0, len(values), size):
        parts.update(values=jnp.asarray(values[start : start + size]))
    np.testing.assert_allclose(whole.compute().standard_deviation, np.std(np.asarray(values, np.float64)), atol=1e-4)
    np.testing.assert_allclose(parts.compute().mean, whole.compute().mean, atol=1e-4)
    np.testing.assert_allclose(parts.compute().standard_deviation, whole.compute().standard_deviation, atol=1e-4)


def test_welford_counts_only_what_the_mask_selects():
    metric = Welford()
    metric.update(values=jnp.array([[1.0, 50.0], [2.0, 4.0]]), mask=jnp.array([[1, 0], [1, 1]]))
    metric.update(values=jnp.array([9.0, -50.0]), mask=jnp.array([True, False]))
    found = metric.compute()
    np.testing.assert_allclose([found.mean, found.standard_deviation], [4.0, np.std([1, 2, 4, 9])], rtol=1e-6)


def test_welford_keeps_its_digits_around_a_large_mean():
    metric = Welford()
    metric.update(values=jnp.array([10_000.0, 10_001.0]))
    metric.update(values=jnp.array([10_002.0, 10_003.0]))
    np.testing.assert_allclose(metric.compute().standard_deviation, np.sqrt(1.25), rtol=1e-5)


def test_a_batch_that_is_masked_out_changes_nothing():
    for metric in (Average(), Welford()):
        metric.update(values=jnp.array([1.0, 3.0]))
        before = jax.tree.leaves(metric.compute())
        metric.update(values=jnp.array([jnp.inf, jnp.nan]), mask=jnp.zeros(2, bool))
        assert jax.tree.leaves(metric.compute()) == before


ACCURACIES = [
    (None, jnp.eye(3), jnp.array([0, 1, 1]), None),
    (None, jnp.eye(3), jnp.array([0, 1, 1]), jnp.array([1, 0, 1])),
    (None, jnp.stack([jnp.eye(3)] * 2), jnp.array([[0, 1, 1], [2, 2, 2]]), None),
    (0.5, jnp.array([0.5, 0.6, 0.1]), jnp.array([1, 0, 0]), None),
    (0.5, jnp.array([0.5, 0.6, 0.1]), jnp.array([1, 0, 2]), jnp.array([True, False, True])),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("threshold", "logits", "labels", "mask"), ACCURACIES)
def test_accuracy_is_flax_s(threshold, logits, labels, mask):
    ours, theirs = Accuracy(threshold), flax_nnx().metrics.Accuracy(threshold)
    ours.update(logits=logits, labels=labels, mask=mask)
    with users_promotion():
        theirs.update(logits=logits, labels=labels, mask=mask)
        expected = theirs.compute()
    np.testing.assert_allclose(ours.compute(), expected)


@pytest.mark.oracle
def test_a_multi_metric_has_flax_s_paths_and_results():
    def build(lib):
        return lib.MultiMetric(accuracy=lib.metrics.Accuracy(), loss=lib.metrics.Average("loss"))

    class Ours:
        MultiMetric, metrics = MultiMetric, metrics

    nnx, batch = flax_nnx(), {"logits": jnp.eye(2), "labels": jnp.array([0, 0]), "loss": jnp.array([1.0, 3.0])}
    ours, theirs = build(Ours), build(nnx)
    for mask in (None, {"loss": jnp.array([True, False])}, jnp.array([True, False])):
        ours.update(**batch, mask=mask)
        with users_promotion():
            theirs.update(**batch, mask=mask)
            expected = theirs.compute()
    own = plait.state(ours, plait.Not(Remainder))
    assert plait.to_flat_state(own).paths == nnx.to_flat_state(nnx.state(theirs)).paths
    for name, value in expected.items():
        np.testing.assert_allclose(ours.compute()[name], value)


@pytest.mark.parametrize("make", [Average, Welford, Accuracy, lambda: MultiMetric(a=Average("labels"))])
def test_jit_agrees_with_eager(make):
    eager, compiled = make(), make()
    batch = {"values": jnp.array([1.0, 2.0]), "logits": jnp.eye(2), "labels": jnp.array([0, 0])}
    step = plait.jit(lambda metric, batch: metric.update(**batch))
    for _ in range(3):
        eager.update(**batch)
        step(compiled, batch)
    for a, b in zip(jax.tree.leaves(eager.compute()), jax.tree.leaves(compiled.compute()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("make", [Average, Welford, Accuracy, lambda: MultiMetric(a=Average())])
def test_reset_forgets(make):
    metric = make()
    for _ in range(3):
        metric.update(values=jnp.full(2, 0.1), logits=jnp.eye(2), labels=jnp.array([0, 0]))
    metric.reset()
    jax.tree.map(np.testing.assert_array_equal, plait.pure(plait.state(metric)), plait.pure(plait.state(make())))


def test_an_empty_average_is_nan():
    assert np.isnan(Average().compute())
    assert np.isnan(Welford().compute().standard_deviation)


@pytest.mark.parametrize("value", [3, 2.5, True, np.array([1, 2]), jnp.ones((2, 2), jnp.bfloat16)])
def test_numbers_and_arrays_of_any_dtype_are_averaged(value):
    metric = Average()
    metric.update(values=value)
    np.testing.assert_allclose(metric.compute(), np.mean(np.asarray(value, np.float32)))
    assert metric.total.value.dtype == jnp.float32


def test_state_and_split():
    graphdef, state = Average().split()
    assert isinstance(state["total"], MetricState)
    assert isinstance(plait.merge(graphdef, state), Average)


def test_statistics_can_be_changed_and_returned_from_jit():
    stats = Statistics(jnp.ones(()), jnp.ones(()), jnp.ones(()))
    assert float(jax.jit(lambda s: s.replace(mean=s.mean + 1))(stats).mean) == 2.0


@pytest.mark.parametrize("method", ["update", "compute", "reset"])
def test_a_subclass_must_define_its_methods(method):
    class Unfinished(Metric):
        def __init__(self):
            pass

    with pytest.raises(NotImplementedError, match=rf"Unfinished .* define its own {method}\(\)"):
        getattr(Unfinished(), method)()
    with pytest.raises(NotImplementedError, match="__init__"):
        Metric()


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Average", "Welford"])
def test_values_in_float64_are_summed_in_float64_as_in_flax(name):
    """O5, O6: in float32 the sum of the first would be 0, and so would the variance of the second."""
    batches = [[1e8, 1.0, -1e8], [1e8, 1e8 + 1, 1e8 + 2]]
    for batch in batches:
        with jax.enable_x64(True), users_promotion(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)  # Flax's own
            metric, other = getattr(metrics, name)(), getattr(flax_nnx().metrics, name)()
            for each in (metric, other):
                each.reset()
                each.update(values=jnp.asarray(batch, jnp.float64))
        names = {"Average": ["total", "count"], "Welford": ["mean", "m2", "count"]}[name]
        found, expected = ([getattr(each, name).get_value() for name in names] for each in (metric, other))
        np.testing.assert_array_equal(found, expected)
        assert [value.dtype for value in found] == [*[jnp.float32] * (len(names) - 1), jnp.uint32]
