"""The metric interface: accumulate over batches, compute at the end.

A metric is a graph object whose sums are variables, so it can be updated inside ``jit``. Batches are combined exactly:
apart from the last digit, the result does not depend on how much data there is, nor on how it was split. (rules O5 to
O8 and O12)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ..core.functional.split import split
from ..core.nodes.pytree import Pytree
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..typing import Array, FilterLiteral
from ..util.words import with_article


class MetricState(Variable[Any]):
    """The accumulated values of a metric."""

    earlier_dtype = "int32"  # of counts in checkpoints, before they could pass 2³¹


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
        raise self._metric__missing("__init__")

    def update(self, **kwargs: Any) -> None:
        """Add a batch."""
        raise self._metric__missing("update")

    def compute(self) -> Any:
        """The value over all batches since the last reset."""
        raise self._metric__missing("compute")

    def reset(self) -> None:
        """Discard all batches."""
        raise self._metric__missing("reset")

    def split(self, *filters: FilterLiteral) -> Any:
        """The metric's structure and values; the same as ``plait.split(metric, *filters)``."""
        return split(self, *filters, graph=True)

    def _metric__missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} is a Metric and must define its own {method}()")


def masked_values(metric: Any, kwargs: Mapping[str, Any], mask: Any) -> tuple[Array, Array | None]:
    """The values of an update and the mask, in one shape; float64 stays, and all else becomes float32.

    Raises:
        ArgumentTypeError: the keyword with the values is missing, or they are not numbers.
        ArgumentError: there is a mask, and the values are not an array.
        ShapeError: the mask does not broadcast to them.
    """
    if metric.argname not in kwargs:
        raise ArgumentTypeError(
            f"Expected keyword argument {metric.argname!r}: {type(metric).__name__}.update was called without values",
            found=f"the keywords {sorted(kwargs)}",
            expected=f"the keyword {metric.argname!r}",
            do=f"call update({metric.argname}=...), or pass the name that you use as argname= to the metric",
        )
    values = kwargs[metric.argname]
    if mask is not None and isinstance(values, (bool, int, float)):
        raise ArgumentError(
            f"{type(metric).__name__}.update was given a mask for a single number",
            found=f"{metric.argname}={values!r}",
            expected="an array of values, which the mask selects from",
            do=f"pass an array: {metric.argname}=jnp.asarray([{values!r}])",
        )
    values = as_numbers(metric, metric.argname, values)
    if values.dtype != jnp.float64:
        values = values.astype(jnp.float32)
    if mask is None:
        return values, None
    mask = jnp.asarray(mask)
    if not values.shape:  # one value for all that count
        values = jnp.broadcast_to(values, mask.shape)
    return values, as_mask(mask, values.shape)


def as_numbers(metric: Any, name: str, value: Any) -> Array:
    """An argument of ``update`` as an array.

    Raises:
        ArgumentTypeError: it is text, ``None`` or something else that JAX has no array of.
    """
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"the {name} of a metric must be numbers",
            at=with_article(type(metric).__name__),
            found=f"{name} of type {type(value).__name__}",
            expected="an array, a list or a number",
            do="convert them; names of classes: jnp.array([classes.index(label) for label in labels])",
        ) from error


def as_mask(mask: Any, shape: tuple[int, ...]) -> Array:
    """A mask as booleans of the given shape.

    Raises:
        ShapeError: it does not broadcast to it.
    """
    mask = jnp.asarray(mask).astype(bool)
    try:
        return jnp.broadcast_to(mask, shape)
    except ValueError as error:
        raise ShapeError(
            "the mask of a metric does not fit its values",
            found=f"a mask of shape {mask.shape}",
            expected=f"a shape that broadcasts to that of the values, {shape}",
            do=f"pass one entry for each value: jnp.ones({shape}, bool)",
        ) from error


def number_of(values: Array, mask: Array | None) -> Array:
    """The number of values that count."""
    return jnp.asarray(values.size, jnp.uint32) if mask is None else jnp.sum(mask, dtype=jnp.uint32)
