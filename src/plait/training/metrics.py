"""The metrics of ``plait.metrics``: means, deviations, accuracy, and a collection of metrics."""

# Rules O5 to O8.

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..core.variables.variable_kinds import Remainder
from ..errors import ArgumentError
from ..typing import Array
from .classification import (
    F1 as F1,
    ConfusionMatrix as ConfusionMatrix,
    Precision as Precision,
    Recall as Recall,
    check_threshold,
    classified,
)
from .metric import Metric as Metric, MetricState as MetricState, masked_values, number_of
from .remainders import added, as_number, carried, remainder

__all__ = [
    "Accuracy",
    "Average",
    "ConfusionMatrix",
    "F1",
    "Metric",
    "MetricState",
    "MultiMetric",
    "Precision",
    "Recall",
    "Statistics",
    "Welford",
]
__dir__ = __all__.copy


class Average(Metric):
    """The mean of all values.

    Variables:
        total: ``MetricState``, ``()``, float32.
        count: ``MetricState``, ``()``, uint32; exact below 2³². A larger one is less by a multiple of 2³¹.
        rest: ``Remainder``, ``(2,)``, float32: what ``total`` rounds off, and the multiple.

    Args:
        argname: the keyword argument of ``update`` with the values.

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
        self.count = MetricState(jnp.zeros((), jnp.uint32))
        self.rest = Remainder(jnp.zeros(2, jnp.float32))

    def reset(self) -> None:
        self.total.value = jnp.zeros((), jnp.float32)
        self.count.value = jnp.zeros((), jnp.uint32)
        self.rest.value = jnp.zeros(2, jnp.float32)

    def update(self, *, mask: Array | None = None, **kwargs: Any) -> None:
        """Add values.

        Args:
            mask: which values count; broadcasts to their shape. ``None`` means all.
            **kwargs: the values, as the keyword ``argname``; others are ignored.

        Raises:
            ArgumentTypeError: the keyword with the values is missing, or they are not numbers.
            ArgumentError: there is a mask, and the values are not an array.
            ShapeError: the mask does not broadcast to them.
        """
        values, mask = masked_values(self, kwargs, mask)
        self._add(values, mask)

    def _add(self, values: Array, mask: Array | None) -> None:
        own = (self.total, self.count, self.rest)
        for variable, value in zip(own, _averaged(*(each.value for each in own), values, mask), strict=True):
            variable.value = value

    def compute(self) -> Array:
        """The mean; NaN before the first update."""
        return self.total.value / as_number(self.count.value, self.rest.value[1])


@functools.partial(jax.jit, inline=True)
def _averaged(total: Array, count: Array, rest: Array, values: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    if mask is not None:
        values = jnp.where(mask, values, jnp.zeros_like(values))
    total, error = added(total, rest[0], jnp.sum(values))
    old = count.astype(jnp.uint32)
    count, carries = carried(old, old + number_of(values, mask), rest[1])
    return total, count, jnp.stack([error, carries])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """The result of ``Welford``, for all values so far.

    Attributes:
        mean: their mean.
        standard_error_of_mean: ``standard_deviation / sqrt(count)``.
        standard_deviation: of the population: the square root of the biased variance.
    """

    mean: Any
    standard_error_of_mean: Any
    standard_deviation: Any

    def replace(self, **changes: Any) -> Statistics:
        """A copy with changed fields."""
        return dataclasses.replace(self, **changes)


class Welford(Metric):
    """Mean and standard deviation of all values, without the cancellation in E[x²] − E[x]².

    Each batch becomes (count, mean, sum of squared deviations ``m2``), and two such triples combine exactly:
    ``m2 = m2_a + m2_b + (mean_b − mean_a)² · n_a · n_b / n``.

    Variables:
        count: ``MetricState``, ``()``, uint32, as in ``Average``. mean, m2: ``MetricState``, ``()``, float32.
        rest: ``Remainder``, ``(3,)``, float32: what ``mean`` and ``m2`` round off, and the multiple of ``count``.

    Args:
        argname: the keyword argument of ``update`` with the values.

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
        self.count = MetricState(jnp.zeros((), jnp.uint32))
        self.mean = MetricState(jnp.zeros((), jnp.float32))
        self.m2 = MetricState(jnp.zeros((), jnp.float32))
        self.rest = Remainder(jnp.zeros(3, jnp.float32))

    def reset(self) -> None:
        self.count.value = jnp.zeros((), jnp.uint32)
        self.mean.value = jnp.zeros((), jnp.float32)
        self.m2.value = jnp.zeros((), jnp.float32)
        self.rest.value = jnp.zeros(3, jnp.float32)

    def update(self, *, mask: Array | None = None, **kwargs: Any) -> None:
        """Add values; arguments and errors as in ``Average.update``."""
        values, mask = masked_values(self, kwargs, mask)
        own = (self.count, self.mean, self.m2, self.rest)
        for variable, value in zip(own, _combined(*(each.value for each in own), values, mask), strict=True):
            variable.value = value

    def compute(self) -> Statistics:
        """The statistics; deviations are NaN before the first update."""
        count = as_number(self.count.value, self.rest.value[2])
        deviation = jnp.sqrt(self.m2.value / count)
        return Statistics(self.mean.value, deviation / jnp.sqrt(count), deviation)


@functools.partial(jax.jit, inline=True)
def _combined(
    count: Array, mean: Array, m2: Array, rest: Array, values: Array, mask: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Count, mean, ``m2`` and their remainders after a batch."""
    number = number_of(values, mask)
    size = number.astype(values.dtype)
    if mask is None and values.size:
        batch_mean, variance = jnp.mean(values), jnp.var(values)
    else:  # a batch that is masked completely has no mean; its weight is 0, so any number works
        batch_mean = jnp.sum(values, where=mask) / jnp.maximum(size, 1.0)
        variance = jnp.sum(jnp.square(values - batch_mean), where=mask) / jnp.maximum(size, 1.0)
    old = count.astype(jnp.uint32)
    before = as_number(old, rest[2]).astype(values.dtype)
    whole = jnp.maximum(before + size, 1.0)
    shift = (batch_mean - mean.astype(values.dtype)) - remainder(mean, rest[0]).astype(values.dtype)
    m2, m2_error = added(m2, rest[1], variance * size + jnp.square(shift) * size * before / whole)
    mean, mean_error = added(mean, rest[0], shift * size / whole)
    count, carries = carried(old, old + number, rest[2])
    return count, mean, m2, jnp.stack([mean_error, m2_error, carries])


class Accuracy(Average):
    """Accuracy: the fraction of correct predictions.

    Without a threshold the prediction is the largest logit, ``argmax(logits, −1) == labels``, and examples whose label
    is not a class, such as −1, are ignored, as by ``Precision`` and the others; Flax counts them as wrong. With a
    threshold, there are two classes: ``(logits >= threshold) == (labels > 0)``.

    Shapes:
        logits: ``(..., classes)``, or ``(...)`` with a threshold.
        labels: ``(...)``, integers. mask: broadcasts to labels.

    Variables: those of ``Average``.

    Args:
        threshold: the least logit of the second of two classes; ``None`` for any number of classes.

    Raises:
        ArgumentTypeError: ``threshold`` is not a float.

    Example:
        >>> accuracy = plait.metrics.Accuracy()
        >>> accuracy.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
        >>> float(accuracy.compute())
        0.5
    """

    def __init__(self, threshold: float | None = None) -> None:
        check_threshold(self, threshold)
        super().__init__("values")
        self.threshold = threshold

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, logits: Array, labels: Array, mask: Array | None = None, **_: Any
    ) -> None:
        """Add predictions.

        Args:
            logits: scores of the classes.
            labels: the true classes.
            mask: which examples count; ``None`` for all.

        Raises:
            ArgumentTypeError: logits or labels are not numbers.
            ShapeError: the ranks of logits and labels do not match, or labels are not integers.
        """
        predictions, labels, counts = classified(self, logits, labels, mask)
        self._add((predictions == labels).astype(jnp.float32), counts)


class MultiMetric(Metric):
    """Several named metrics, updated together.

    Args:
        **metrics: metrics by name; each becomes an attribute.

    Raises:
        ArgumentError: a name is also the name of a method.

    Example:
        >>> metrics = plait.MultiMetric(accuracy=plait.metrics.Accuracy(), loss=plait.metrics.Average("loss"))
        >>> metrics.update(logits=jnp.eye(2), labels=jnp.array([0, 0]), loss=jnp.array([1.0, 3.0]))
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'accuracy': 0.5, 'loss': 2.0}
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

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
        """Update all metrics with the same arguments.

        Args:
            mask: one for all metrics, or a dict of masks by their names.
            **kwargs: arguments of the metrics; each uses those that it accepts.
        """
        for name, metric in self._metrics().items():
            own = mask.get(name) if isinstance(mask, Mapping) else mask
            metric.update(**kwargs, **({} if own is None else {"mask": own}))

    def compute(self) -> dict[str, Any]:
        """The value of each metric, by name."""
        return {name: metric.compute() for name, metric in self._metrics().items()}
