"""Metrics: numbers that are gathered over many batches and computed at the end.

A metric is a graph object whose sums are variables, so that it can be updated inside ``jit``. Batches are combined
exactly: the result does not depend on how the data was cut. (rules O5 to O8)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional import split
from ..core.module import Pytree
from ..core.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..typing import Array, FilterLiteral


class MetricState(Variable[Any]):
    """What a metric has gathered."""


class Metric(Pytree):
    """The interface of metrics: ``update`` with each batch, then ``compute``, then ``reset``.

    Subclasses define all four methods, ``__init__`` included.

    Example:
        >>> class Largest(plait.Metric):
        ...     def __init__(self):
        ...         self.reset_value = -jnp.inf
        ...         self.value = plait.metrics.MetricState(jnp.array(-jnp.inf))
        ...     def update(self, *, values, **_):
        ...         self.value[...] = jnp.maximum(self.value[...], values.max())
        ...     def compute(self):
        ...         return self.value[...]
        ...     def reset(self):
        ...         self.value[...] = jnp.array(-jnp.inf)
        >>> largest = Largest()
        >>> largest.update(values=jnp.array([1.0, 3.0]))
        >>> float(largest.compute())
        3.0
    """

    def __init__(self) -> None:
        raise self._missing("__init__")

    def update(self, **kwargs: Any) -> None:
        """Take in a batch."""
        raise self._missing("update")

    def compute(self) -> Any:
        """The metric of all batches since the last reset."""
        raise self._missing("compute")

    def reset(self) -> None:
        """Forget all batches."""
        raise self._missing("reset")

    def split(self, *filters: FilterLiteral) -> Any:
        """The metric's structure and values; the same as ``plait.split(metric, *filters)``."""
        return split(self, *filters)

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} is a Metric and must define its own {method}()")


class Average(Metric):
    """The mean of all values.

    Variables:
        total: ``MetricState``, ``()``, float32. count: ``MetricState``, ``()``, int32.

    Args:
        argname: name of the keyword of ``update`` that holds the values.

    Example:
        >>> loss = plait.metrics.Average("loss")
        >>> loss.update(loss=jnp.array([1.0, 2.0]))
        >>> loss.update(loss=jnp.array([6.0, 9.0]), mask=jnp.array([True, False]))
        >>> float(loss.compute())
        3.0
    """

    def __init__(self, argname: str = "values") -> None:
        self.argname = argname
        self.total = MetricState(jnp.zeros((), jnp.float32))
        self.count = MetricState(jnp.zeros((), jnp.int32))

    def reset(self) -> None:
        self.total.value = jnp.zeros((), jnp.float32)
        self.count.value = jnp.zeros((), jnp.int32)

    def update(self, *, mask: Array | None = None, **kwargs: Any) -> None:
        """Take in values.

        Args:
            mask: which of them count; broadcasts to their shape. ``None`` for all.
            **kwargs: the values, under the metric's name for them; others are ignored.

        Raises:
            ArgumentTypeError: the keyword with the values is missing.
            ArgumentError: a mask was given and the values are no array.
        """
        values, mask = masked_values(self, kwargs, mask)
        self._add(values, mask)

    def _add(self, values: Array, mask: Array | None) -> None:
        if mask is not None:
            values = jnp.where(mask, values, jnp.zeros_like(values))
        self.total.value = self.total.value + jnp.sum(values)
        self.count.value = self.count.value + number_of(values, mask)

    def compute(self) -> Array:
        """The mean; NaN before the first update."""
        return self.total.value / self.count.value.astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """What ``Welford`` computes, of all values it was given.

    Attributes:
        mean: their mean.
        standard_error_of_mean: ``standard_deviation / sqrt(count)``.
        standard_deviation: of the population: the square root of the biased variance.
    """

    mean: Any
    standard_error_of_mean: Any
    standard_deviation: Any

    def replace(self, **changes: Any) -> Statistics:
        """The same with other fields."""
        return dataclasses.replace(self, **changes)


class Welford(Metric):
    """Mean and standard deviation of all values, without the cancellation of E[x²] − E[x]².

    Each batch comes in as (count, mean, sum of squared deviations ``m2``), and two such triples combine exactly:
    ``m2 = m2_a + m2_b + (mean_b − mean_a)² · n_a · n_b / n``.

    Variables:
        count: ``MetricState``, ``()``, int32. mean, m2: ``MetricState``, ``()``, float32.

    Args:
        argname: name of the keyword of ``update`` that holds the values.

    Example:
        >>> loss = plait.metrics.Welford("loss")
        >>> loss.update(loss=jnp.array([1.0, 3.0]))
        >>> loss.update(loss=jnp.array([5.0, 7.0]))
        >>> stats = loss.compute()
        >>> float(stats.mean), round(float(stats.standard_deviation), 3)
        (4.0, 2.236)

    Reference: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983, after Welford, 1962.
    """

    def __init__(self, argname: str = "values") -> None:
        self.argname = argname
        self.count = MetricState(jnp.zeros((), jnp.int32))
        self.mean = MetricState(jnp.zeros((), jnp.float32))
        self.m2 = MetricState(jnp.zeros((), jnp.float32))

    def reset(self) -> None:
        self.count.value = jnp.zeros((), jnp.int32)
        self.mean.value = jnp.zeros((), jnp.float32)
        self.m2.value = jnp.zeros((), jnp.float32)

    def update(self, *, mask: Array | None = None, **kwargs: Any) -> None:
        """Take in values; arguments and errors as in ``Average.update``."""
        values, mask = masked_values(self, kwargs, mask)
        added = number_of(values, mask)
        n_added = added.astype(jnp.float32)
        # A batch that is masked out altogether has no mean; with weight 0 any number will do.
        where = None if mask is None else mask
        mean = jnp.sum(values, where=where) / jnp.maximum(n_added, 1.0)
        m2 = jnp.sum(jnp.square(values - mean), where=where)
        before = self.count.value.astype(jnp.float32)
        share = n_added / jnp.maximum(before + n_added, 1.0)
        shift = mean - self.mean.value
        self.m2.value = self.m2.value + m2 + jnp.square(shift) * before * share
        self.mean.value = self.mean.value + shift * share
        self.count.value = self.count.value + added

    def compute(self) -> Statistics:
        """The statistics; deviations are NaN before the first update."""
        count = self.count.value.astype(jnp.float32)
        deviation = jnp.sqrt(self.m2.value / count)
        return Statistics(self.mean.value, deviation / jnp.sqrt(count), deviation)


class Accuracy(Average):
    """The share of right predictions.

    Without a threshold the prediction is the largest logit: ``argmax(logits, −1) == labels``. With one, there are two
    classes: ``(logits >= threshold) == (labels > 0)``.

    Shapes:
        logits: ``(..., classes)``, or ``(...)`` with a threshold.
        labels: ``(...)``, integers. mask: broadcasts to labels.

    Variables:
        total: ``MetricState``, ``()``, float32. count: ``MetricState``, ``()``, int32.

    Args:
        threshold: where the second of two classes begins; ``None`` for any number of classes.

    Raises:
        ArgumentTypeError: ``threshold`` is no float.

    Example:
        >>> accuracy = plait.metrics.Accuracy()
        >>> accuracy.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
        >>> float(accuracy.compute())
        0.5
    """

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and not isinstance(threshold, float):
            raise ArgumentTypeError(
                "the threshold of an Accuracy must be a float",
                found=f"{threshold!r} of type {type(threshold).__name__}",
                expected="a float for two classes, or None",
                do="for example Accuracy(threshold=0.5)",
            )
        super().__init__("values")
        self.threshold = threshold

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, logits: Array, labels: Array, mask: Array | None = None, **_: Any
    ) -> None:
        """Take in predictions.

        Args:
            logits: scores of the classes.
            labels: the right classes.
            mask: which of them count; ``None`` for all.

        Raises:
            ShapeError: the ranks of logits and labels do not fit each other, or labels are not integers.
        """
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        self._add(self._hits(logits, labels), None if mask is None else as_mask(mask, labels.shape))

    def _hits(self, logits: Array, labels: Array) -> Array:
        gap = 1 if self.threshold is None else 0
        if logits.ndim != labels.ndim + gap or (logits.shape[: labels.ndim] != labels.shape):
            raise ShapeError(
                "logits and labels do not fit each other",
                at=f"an Accuracy with threshold={self.threshold}",
                found=f"logits of shape {logits.shape} and labels of shape {labels.shape}",
                expected="logits with one more axis than labels, the classes" if gap else "equal shapes",
                do="Accuracy(threshold=0.5) takes one logit per label, Accuracy() one per class",
            )
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ShapeError(
                "labels must be integers",
                at=f"an Accuracy with threshold={self.threshold}",
                found=f"labels of dtype {labels.dtype.name}",
                expected="an integer dtype",
                do="convert them: labels.astype(jnp.int32)",
            )
        if self.threshold is None:
            hits = jnp.argmax(logits, axis=-1).astype(labels.dtype) == labels
        else:
            hits = (logits >= self.threshold) == (labels > 0)
        return hits.astype(jnp.float32)


class MultiMetric(Metric):
    """Several metrics under names, updated together.

    Args:
        **metrics: metrics by name; each becomes an attribute.

    Raises:
        ArgumentError: a name is that of a method.

    Example:
        >>> metrics = plait.MultiMetric(accuracy=plait.metrics.Accuracy(), loss=plait.metrics.Average("loss"))
        >>> metrics.update(logits=jnp.eye(2), labels=jnp.array([0, 0]), loss=jnp.array([1.0, 3.0]))
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'accuracy': 0.5, 'loss': 2.0}
    """

    def __init__(self, **metrics: Metric) -> None:
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            if hasattr(type(self), name):
                raise ArgumentError(
                    "a metric cannot have the name of a method of MultiMetric",
                    found=f"the name {name!r}",
                    expected="any other name",
                    do=f"for example MultiMetric({name}_metric=...)",
                )
            setattr(self, name, metric)

    def _metrics(self) -> dict[str, Metric]:
        return {name: getattr(self, name) for name in self._metric_names}

    def reset(self) -> None:
        for metric in self._metrics().values():
            metric.reset()

    def update(self, *, mask: Any = None, **kwargs: Any) -> None:
        """Give all metrics the same arguments.

        Args:
            mask: one for all metrics, or a dict of masks by their names.
            **kwargs: arguments of the metrics; each takes those that it knows.
        """
        for name, metric in self._metrics().items():
            own = mask.get(name) if isinstance(mask, Mapping) else mask
            metric.update(**kwargs, **({} if own is None else {"mask": own}))

    def compute(self) -> dict[str, Any]:
        """What each metric computes, by name."""
        return {name: metric.compute() for name, metric in self._metrics().items()}


def masked_values(metric: Any, kwargs: Mapping[str, Any], mask: Any) -> tuple[Array, Array | None]:
    """The values of an update as float32, and the mask in their shape.

    Raises:
        ArgumentTypeError: the keyword with the values is missing.
        ArgumentError: a mask was given and the values are no array.
    """
    if metric.argname not in kwargs:
        raise ArgumentTypeError(
            f"{type(metric).__name__}.update was called without its values",
            found=f"the keywords {sorted(kwargs)}",
            expected=f"the keyword {metric.argname!r}",
            do=f"call update({metric.argname}=...), or make the metric with argname= the name that you use",
        )
    values = kwargs[metric.argname]
    if mask is not None and isinstance(values, (bool, int, float)):
        raise ArgumentError(
            f"{type(metric).__name__}.update was given a mask for a single number",
            found=f"{metric.argname}={values!r}",
            expected="an array of values, which the mask selects from",
            do=f"pass an array: {metric.argname}=jnp.asarray([{values!r}])",
        )
    values = jnp.asarray(values).astype(jnp.float32)
    return values, None if mask is None else as_mask(mask, values.shape)


def as_mask(mask: Any, shape: tuple[int, ...]) -> Array:
    """A mask as booleans of the given shape."""
    return jnp.broadcast_to(jnp.asarray(mask).astype(bool), shape)


def number_of(values: Array, mask: Array | None) -> Array:
    """How many values count."""
    return jnp.asarray(values.size, jnp.int32) if mask is None else jnp.sum(mask, dtype=jnp.int32)
