"""Classification metrics per class: the confusion matrix, precision, recall and F1."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..core.variables.variable_kinds import Remainder
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..typing import Array
from ..util.words import with_article
from .metric import Metric, MetricState, as_mask, as_numbers
from .remainders import as_number, carried, carries

AVERAGES = ("macro", "micro", "weighted", None)


class ConfusionMatrix(Metric):
    """The confusion matrix: ``matrix[label, predicted]`` is a number of examples.

    Without a threshold the prediction is the largest logit, and examples whose label is not a class, such as −1, are
    ignored. With one there are two classes: the prediction is ``logits >= threshold``, the label ``labels > 0``.

    Shapes:
        logits: ``(..., num_classes)``, or ``(...)`` with a threshold.
        labels: ``(...)``, integers. mask: broadcasts to labels.

    Variables:
        matrix: ``MetricState``, ``(num_classes, num_classes)``, int32; exact below 2³¹. A larger cell is less
            by a multiple of 2³⁰, at least 2³⁰.
        rest: ``Remainder``, of the same shape, uint16: the multiples, which the scores count.

    Args:
        num_classes: the number of classes; ``None`` with a threshold.
        threshold: the least logit of the second of two classes.

    Raises:
        ArgumentTypeError: ``num_classes`` is not an integer, or ``threshold`` not a float.
        ArgumentError: not exactly one of the two was given.

    Example:
        >>> matrix = plait.metrics.ConfusionMatrix(2)
        >>> matrix.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]]), labels=jnp.array([1, 1, 0]))
        >>> matrix.compute().tolist()
        [[1, 0], [1, 1]]
    """

    def __init__(self, num_classes: int | None = None, *, threshold: float | None = None) -> None:
        check_threshold(self, threshold)
        if (num_classes is None) == (threshold is None):
            raise ArgumentError(
                f"{type(self).__name__} takes either num_classes or threshold",
                found=f"num_classes={num_classes} and threshold={threshold}",
                expected="exactly one of the two",
                do=f"for example {type(self).__name__}(10), or {type(self).__name__}(threshold=0.5) for two classes",
            )
        if num_classes is not None and (isinstance(num_classes, bool) or not isinstance(num_classes, int)):
            raise ArgumentTypeError(
                f"the number of classes of {with_article(type(self).__name__)} must be an integer",
                found=f"{num_classes!r} of type {type(num_classes).__name__}",
                expected="an int",
                do=f"for example {type(self).__name__}(10)",
            )
        self.num_classes = num_classes or 2
        self.threshold = threshold
        self.matrix = MetricState(jnp.zeros((self.num_classes, self.num_classes), jnp.int32))
        self.rest = Remainder(jnp.zeros((self.num_classes, self.num_classes), jnp.uint16))

    def reset(self) -> None:
        self.matrix.value = jnp.zeros_like(self.matrix.value)
        self.rest.value = jnp.zeros_like(self.rest.value)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, logits: Array, labels: Array, mask: Array | None = None, **_: Any
    ) -> None:
        """Add predictions.

        Args:
            logits: scores of the classes.
            labels: the true classes.
            mask: which examples count; ``None`` means all.

        Raises:
            ArgumentTypeError: logits or labels are not numbers.
            ShapeError: logits, labels and classes do not match, or labels are not integers.
        """
        predictions, labels, counts = classified(self, logits, labels, mask)
        if self.threshold is None and jnp.shape(logits)[-1] != self.num_classes:
            raise ShapeError(
                "the logits do not match the number of classes",
                at=with_article(type(self).__name__),
                found=f"logits of shape {jnp.shape(logits)}",
                expected=f"a last axis of {self.num_classes} classes",
                do=f"create the metric for them: {type(self).__name__}({jnp.shape(logits)[-1]})",
            )
        old = self.matrix.value
        new = old.at[labels.ravel(), predictions.ravel()].add(counts.ravel().astype(jnp.int32))
        self.matrix.value, self.rest.value = carried(old, new, self.rest.value)

    def compute(self) -> Array:
        """The matrix of all batches: rows are true classes, columns are predictions; a cell is at most 2³¹ − 1."""
        matrix = self.matrix.value
        return jnp.where(carries(matrix, self.rest.value) > 0, jnp.iinfo(jnp.int32).max, matrix)


class _Ratio(ConfusionMatrix):
    """A score of each class, and its average over the classes."""

    def __init__(
        self, num_classes: int | None = None, *, threshold: float | None = None, average: str | None = "macro"
    ) -> None:
        super().__init__(num_classes, threshold=threshold)
        if average not in AVERAGES:
            raise ArgumentError(
                f"{type(self).__name__} does not have this kind of average",
                found=f"average={average!r}",
                expected=", ".join(map(repr, AVERAGES)),
                do="omit it for the mean over classes",
            )
        self.average = average

    def compute(self) -> Array:
        """The score of the second class if there is a threshold, otherwise the average; NaN before the first update."""
        matrix = as_number(self.matrix.value, self.rest.value)
        hits, predicted, right = jnp.diagonal(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
        if self.average == "micro" and self.threshold is None:
            return self._ratio(hits.sum(), predicted.sum(), right.sum(), empty=jnp.nan)
        scores = self._ratio(hits, predicted, right, empty=0.0)
        if self.threshold is not None:
            return jnp.where(matrix.sum() > 0, scores[1], jnp.nan)
        if self.average is None:
            return scores
        weights = right if self.average == "weighted" else (predicted + right > 0).astype(jnp.float32)
        return (scores * weights).sum() / weights.sum()

    def _ratio(self, hits: Array, predicted: Array, right: Array, *, empty: float) -> Array:
        part, whole = self._parts(hits, predicted, right)
        return jnp.where(whole > 0, part / jnp.maximum(whole, 1.0), empty)

    def _parts(self, hits: Array, predicted: Array, right: Array) -> tuple[Array, Array]:
        raise NotImplementedError


class Precision(_Ratio):
    """Precision: the fraction of the predictions of a class that are correct.

    ``hits / predictions`` for each class. If that is 0/0, the score of the class is 0.

    Shapes and variables: those of ``ConfusionMatrix``.

    Args:
        num_classes: the number of classes; ``None`` with a threshold.
        threshold: the least logit of the second of two classes; the result is then the score of that class.
        average: over classes: ``"macro"``, the mean over those that occur in labels or predictions; ``"weighted"``,
            with the numbers of labels as weights; ``"micro"``, from the counts of all classes together; ``None`` gives
            an array with the score of each class.

    Raises:
        ArgumentError: not exactly one of ``num_classes`` and ``threshold`` was given, or ``average`` is unknown.
        ArgumentTypeError: ``num_classes`` is not an integer, or ``threshold`` not a float.

    Example:
        >>> precision = plait.metrics.Precision(threshold=0.5)
        >>> precision.update(logits=jnp.array([0.9, 0.8, 0.7, 0.1]), labels=jnp.array([1, 1, 0, 1]))
        >>> round(float(precision.compute()), 3)
        0.667
    """

    def _parts(self, hits: Array, predicted: Array, right: Array) -> tuple[Array, Array]:
        return hits, predicted


class Recall(_Ratio):
    """Recall: the fraction of the examples of a class that were predicted as such.

    ``hits / labels`` for each class. If that is 0/0, the score of the class is 0.

    Shapes and variables: those of ``ConfusionMatrix``.

    Args:
        num_classes: the number of classes; ``None`` with a threshold.
        threshold: the least logit of the second of two classes; the result is then the score of that class.
        average: over classes: ``"macro"``, the mean over those that occur in labels or predictions; ``"weighted"``,
            with the numbers of labels as weights; ``"micro"``, from the counts of all classes together; ``None`` gives
            an array with the score of each class.

    Raises:
        ArgumentError: not exactly one of ``num_classes`` and ``threshold`` was given, or ``average`` is unknown.
        ArgumentTypeError: ``num_classes`` is not an integer, or ``threshold`` not a float.

    Example:
        >>> recall = plait.metrics.Recall(2, average=None)
        >>> recall.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]]), labels=jnp.array([1, 1, 0]))
        >>> recall.compute().tolist()
        [1.0, 0.5]
    """

    def _parts(self, hits: Array, predicted: Array, right: Array) -> tuple[Array, Array]:
        return hits, right


class F1(_Ratio):
    """The harmonic mean of precision and recall.

    ``2 · hits / (predictions + labels)`` for each class. If that is 0/0, the score of the class is 0.

    Shapes and variables: those of ``ConfusionMatrix``.

    Args:
        num_classes: the number of classes; ``None`` with a threshold.
        threshold: the least logit of the second of two classes; the result is then the score of that class.
        average: over classes: ``"macro"``, the mean over those that occur in labels or predictions; ``"weighted"``,
            with the numbers of labels as weights; ``"micro"``, from the counts of all classes together; ``None`` gives
            an array with the score of each class.

    Raises:
        ArgumentError: not exactly one of ``num_classes`` and ``threshold`` was given, or ``average`` is unknown.
        ArgumentTypeError: ``num_classes`` is not an integer, or ``threshold`` not a float.

    Example:
        >>> f1 = plait.metrics.F1(2)
        >>> f1.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4]]), labels=jnp.array([1, 1, 0]))
        >>> round(float(f1.compute()), 3)
        0.667
    """

    def _parts(self, hits: Array, predicted: Array, right: Array) -> tuple[Array, Array]:
        return 2 * hits, predicted + right


def check_threshold(metric: Any, threshold: Any) -> None:
    """Raise for a threshold that is not a float.

    Raises:
        ArgumentTypeError: names what was found.
    """
    if threshold is not None and not isinstance(threshold, float):
        name = type(metric).__name__
        raise ArgumentTypeError(
            f"the threshold of {with_article(name)} must be a float",
            found=f"{threshold!r} of type {type(threshold).__name__}",
            expected="a float for two classes, or None",
            do=f"for example {name}(threshold=0.5)",
        )


def classified(metric: Any, logits: Any, labels: Any, mask: Any) -> tuple[Array, Array, Array]:
    """The predicted class and the true class of each example, as int32, and whether it counts.

    An example counts if the mask selects it and its label is a class.

    Raises:
        ArgumentTypeError: logits or labels are not numbers.
        ShapeError: logits, labels and mask do not match, or labels are not integers.
    """
    logits, labels = as_numbers(metric, "logits", logits), as_numbers(metric, "labels", labels)
    name = type(metric).__name__
    place = f"{with_article(name)} with threshold={metric.threshold}"
    gap = 1 if metric.threshold is None else 0
    if logits.ndim != labels.ndim + gap or (logits.shape[: labels.ndim] != labels.shape):
        raise ShapeError(
            f"For {'multi-class' if gap else 'binary'} classification, the shapes of logits and labels do not match",
            at=place,
            found=f"logits of shape {logits.shape} and labels of shape {labels.shape}",
            expected="logits with one more axis than labels, the classes" if gap else "equal shapes",
            do="remove the last axis of the labels: labels[..., 0]"
            if labels.shape[-1:] == (1,) and labels.ndim > 1
            else f"{name} takes one logit per label with threshold=0.5, or one per class; one-hot: labels.argmax(-1)",
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ShapeError(
            "labels must be integers",
            at=place,
            found=f"labels of dtype {labels.dtype.name}",
            expected="an integer dtype",
            do="convert them: labels.astype(jnp.int32)",
        )
    counts = jnp.full_like(labels, True, bool) if mask is None else as_mask(mask, labels.shape)
    if metric.threshold is not None:
        return (logits >= metric.threshold).astype(jnp.int32), (labels > 0).astype(jnp.int32), counts
    labels = labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels  # to be compared with any number
    counts &= (labels >= 0) & (labels < logits.shape[-1])
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), jnp.where(counts, labels, 0).astype(jnp.int32), counts
