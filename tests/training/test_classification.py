"""Metrics that count by class, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentTypeError
from plait.training import metrics
from plait.training.metrics import F1, ConfusionMatrix, Precision, Recall

CLASSES = 4
EXAMPLE = st.tuples(st.integers(0, CLASSES - 1), st.integers(-1, CLASSES - 1), st.booleans())
EXAMPLES = st.sampled_from([1, 3, 12]).flatmap(lambda size: st.lists(EXAMPLE, min_size=size, max_size=size))
KINDS = [Precision, Recall, F1]


def as_batch(examples):
    predicted, labels, mask = map(np.asarray, zip(*examples, strict=True))
    return {"logits": jnp.eye(CLASSES)[predicted], "labels": jnp.asarray(labels), "mask": jnp.asarray(mask)}


def matrix_of(examples):
    matrix = np.zeros((CLASSES, CLASSES), np.int64)
    for predicted, label, counts in examples:
        if counts and label >= 0:
            matrix[label, predicted] += 1
    return matrix


def score_of(kind, hits, predicted, right):
    if kind is Precision:
        return hits / predicted if predicted else 0.0
    if kind is Recall:
        return hits / right if right else 0.0
    precision, recall = (score_of(other, hits, predicted, right) for other in (Precision, Recall))
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def expected(kind, average, matrix):
    hits, predicted, right = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    scores = np.array([score_of(kind, *counts) for counts in zip(hits, predicted, right, strict=True)])
    if average is None:
        return scores
    if average == "micro":
        return score_of(kind, hits.sum(), predicted.sum(), right.sum())
    return np.average(scores, weights=right if average == "weighted" else (predicted + right > 0).astype(float))


@pytest.mark.slow
@settings(max_examples=10)
@given(EXAMPLES, EXAMPLES)
def test_the_matrix_counts_each_pair(first, second):
    metric = ConfusionMatrix(CLASSES)
    metric.update(**as_batch(first))
    metric.update(**as_batch(second), unknown=3)
    np.testing.assert_array_equal(metric.compute(), matrix_of(first + second))


@pytest.mark.sampled
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", None])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(examples=EXAMPLES)
def test_scores_are_those_of_numpy(kind, average, examples):
    matrix = matrix_of(examples)
    metric = kind(CLASSES, average=average)
    metric.update(**as_batch(examples))
    if matrix.sum():
        np.testing.assert_allclose(metric.compute(), expected(kind, average, matrix), rtol=1e-5)
    else:
        assert np.isnan(metric.compute()).all() == (average is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "score"), [(Precision, 1 / 3), (Recall, 1 / 2), (F1, 2 / 5)])
def test_with_a_threshold_the_score_is_that_of_the_second_class(kind, score):
    metric = kind(threshold=0.5)
    assert np.isnan(metric.compute())
    metric.update(logits=jnp.array([0.9]), labels=jnp.array([1]))
    assert metric.compute() == 1
    metric.reset()
    metric.update(logits=jnp.array([0.9, 0.5, 0.6, 0.1, 0.2]), labels=jnp.array([1, 0, 0, 3, 0]))
    np.testing.assert_allclose(metric.compute(), score, rtol=1e-6)


@pytest.mark.slow
def test_jit_and_reset():
    metrics = plait.MultiMetric(precision=Precision(CLASSES), matrix=ConfusionMatrix(CLASSES))
    eager = plait.clone(metrics)
    examples = [(0, 1, True), (1, 1, True), (2, 0, False), (3, -1, True)]
    step = plait.jit(lambda metrics, batch: metrics.update(**batch))
    for _ in range(2):
        step(metrics, as_batch(examples))
        eager.update(**as_batch(examples))
    found, other = metrics.compute(), eager.compute()
    assert found["matrix"].sum() == 4
    assert found["precision"] == other["precision"] == 0.5
    np.testing.assert_array_equal(found["matrix"], other["matrix"])
    metrics.reset()
    assert not metrics.matrix.compute().any()


@pytest.mark.slow
def test_any_number_of_batch_axes_and_small_label_dtypes():
    metric = ConfusionMatrix(200)
    metric.update(logits=jnp.eye(200)[jnp.array([[150, 3]])], labels=jnp.array([[150, 199]], jnp.uint8))
    assert metric.compute()[150, 150] == 1
    assert metric.compute()[199, 3] == 1


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32, jnp.uint32])
@pytest.mark.parametrize("kind", [metrics.Accuracy, *KINDS], ids=lambda kind: kind.__name__)
def test_a_label_that_is_no_class_is_ignored_by_every_metric(kind, dtype):
    """O7: as padding is marked; -1 is 255 or more in an unsigned dtype."""
    metric = kind() if kind is metrics.Accuracy else kind(3, average="micro")
    labels = jnp.array([0, -1, 1, 3, -100]).astype(dtype)
    metric.update(logits=jnp.eye(5, 3), labels=labels)
    assert float(metric.compute()) == 0.5
    assert int(metric.matrix[...].sum() if hasattr(metric, "matrix") else metric.count[...]) == 2


NO_NUMBERS = [None, "cat", ["cat", "dog"], np.array([None, 1])]


@pytest.mark.parametrize("name", ["logits", "labels"])
@pytest.mark.parametrize("kind", [metrics.Accuracy, *KINDS], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_array_of_numbers_is_a_type_error(kind, name, value):
    """O7."""
    metric = plait.MultiMetric(score=kind() if kind is metrics.Accuracy else kind(2))
    with pytest.raises(ArgumentTypeError, match=f"found +{name} of type {type(value).__name__}"):
        metric.update(**{"logits": jnp.eye(2), "labels": jnp.array([0, 1]), name: value})
