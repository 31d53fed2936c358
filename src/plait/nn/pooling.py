"""Pooling: reduces each window of the input to one value, per channel.

These are functions, not layers, since they have no parameters. Inputs are ``(..., *spatial, channels)`` with any number
of batch axes, including none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import ArgumentError, ShapeError
from ..typing import Array
from .arithmetic import arithmetic
from .promotion import common_dtype

Padding = str | Sequence[tuple[int, int]]

_NAMES = ("SAME", "SAME_LOWER", "VALID")


def pool(
    inputs: Array,
    init: Any,
    reduce_fn: Callable[[Array, Array], Array],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> Array:
    """Reduce windows with a function.

    Args:
        inputs: ``(..., *spatial, channels)``.
        init: initial value of each window's reduction, and the value of the padding.
        reduce_fn: combines two values; gradients need ``jax.lax.add``, ``max`` or ``min``.
        window_shape: window length per spatial axis.
        strides: steps between windows, one per spatial axis; ``None``: 1 in each, as in Flax (in PyTorch, the window).
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or a pair (before, after) per spatial axis.

    Returns:
        ``(..., *spatial_out, channels)``.

    Raises:
        ShapeError: the input has too few axes for the window.
        ArgumentError: strides or padding do not have one entry per axis of the window.

    Example:
        >>> x = jnp.arange(4.0).reshape(4, 1)
        >>> plait.pool(x, 0.0, jax.lax.add, (2,), (2,), "VALID")[:, 0].tolist()
        [1.0, 5.0]
    """
    x = jnp.asarray(inputs)
    window = tuple(window_shape)
    n_batch = x.ndim - len(window) - 1
    if n_batch < 0:
        raise ShapeError(
            "the input has too few axes for the pooling window",
            found=f"an input of shape {x.shape} and window_shape={window}",
            expected=f"at least {len(window) + 1} axes: {len(window)} spatial and one for the channels",
            do="add the missing axes, or use a window with fewer",
        )
    strides = (1,) * len(window) if strides is None else _one_per_axis(strides, window, "strides")
    sides = () if isinstance(padding, str) else _one_per_axis(padding, window, "padding")
    is_known = not isinstance(padding, str) or padding.upper() in _NAMES
    if not is_known or not all(isinstance(side, Sequence) and len(side) == 2 for side in sides):
        raise ArgumentError(
            "pooling does not support this padding",
            found=f"padding={padding!r}",
            expected=f"{', '.join(map(repr, _NAMES))}, or a pair (before, after) for each axis of the window",
            do=f"for example padding={((1, 1),) * len(window)}",
        )
    if not isinstance(padding, str):
        padding = (*((0, 0),) * n_batch, *(tuple(side) for side in sides), (0, 0))  # type: ignore[misc]
    ones = (1,) * n_batch
    standard = reduce_fn in (lax.add, lax.max, lax.min) and isinstance(init, (int, float))
    return (_windows if standard else _windows_of)(
        x,
        init=init,
        reduce_fn=reduce_fn,
        window=(*ones, *window, 1),
        strides=(*ones, *strides, 1),
        padding=padding,
    )


def _windows_of(
    x: Array, *, init: Any, reduce_fn: Callable[..., Array], window: Any, strides: Any, padding: Any
) -> Array:
    # A NumPy scalar: JAX recognises sum, max and min, which have gradients, only if the value is concrete.
    return lax.reduce_window(x, np.asarray(init, x.dtype), reduce_fn, window, strides, padding)


_windows = arithmetic(_windows_of)


def _one_per_axis(values: Any, window: tuple[int, ...], name: str) -> tuple[Any, ...]:
    values = tuple(values) if isinstance(values, Iterable) else values
    if not isinstance(values, tuple) or len(values) != len(window):
        raise ArgumentError(
            f"{name} of a pooling do not fit its window",
            found=f"{name}={values!r} and window_shape={window}",
            expected=f"one entry for each of the {len(window)} axes of the window",
            do=f"for example {name}={window if name == 'strides' else ((1, 1),) * len(window)}",
        )
    return values


def max_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """The maximum of each window; padding is ignored.

    Args:
        inputs: ``(..., *spatial, channels)``.
        window_shape: window length per spatial axis.
        strides: steps between windows, one per spatial axis; ``None``: 1 in each, as in Flax (in PyTorch, the window).
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or a pair (before, after) per spatial axis.

    Raises:
        ShapeError: the input has too few axes for the window.
        ArgumentError: strides or padding do not have one entry per axis of the window.

    Example:
        >>> plait.max_pool(jnp.arange(4.0).reshape(4, 1), (2,), (2,))[:, 0].tolist()
        [1.0, 3.0]
    """
    x = jnp.asarray(inputs)
    return pool(x, _extreme(x, lowest=True), lax.max, window_shape, strides, padding)


def min_pool(
    inputs: Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """The minimum of each window; padding is ignored.

    Args:
        inputs: ``(..., *spatial, channels)``.
        window_shape: window length per spatial axis.
        strides: steps between windows, one per spatial axis; ``None``: 1 in each, as in Flax (in PyTorch, the window).
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or a pair (before, after) per spatial axis.

    Raises:
        ShapeError: the input has too few axes for the window.
        ArgumentError: strides or padding do not have one entry per axis of the window.

    Example:
        >>> plait.min_pool(jnp.arange(4.0).reshape(4, 1), (2,), (2,))[:, 0].tolist()
        [0.0, 2.0]
    """
    x = jnp.asarray(inputs)
    return pool(x, _extreme(x, lowest=False), lax.min, window_shape, strides, padding)


def _extreme(x: Array, *, lowest: bool) -> Any:
    """The identity of the reduction: the least or greatest value of the dtype."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return -np.inf if lowest else np.inf
    if x.dtype == jnp.bool_:
        return not lowest
    limits = jnp.iinfo(x.dtype)
    return limits.min if lowest else limits.max


def avg_pool(
    inputs: Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """The mean of each window.

    Args:
        inputs: ``(..., *spatial, channels)``; integers are averaged as float32.
        window_shape: window length per spatial axis.
        strides: steps between windows, one per spatial axis; ``None``: 1 in each, as in Flax (in PyTorch, the window).
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or a pair (before, after) per spatial axis.
        count_include_pad: whether padding counts as zeros; otherwise only elements of the input count.

    Raises:
        ShapeError: the input has too few axes for the window.
        ArgumentError: strides or padding do not have one entry per axis of the window.

    Example:
        >>> plait.avg_pool(jnp.array([[2.0], [4.0]]), (2,), (2,), ((1, 1),), count_include_pad=False)[:, 0].tolist()
        [2.0, 4.0]
    """
    x = jnp.asarray(inputs)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(common_dtype(x, jnp.float32))
    total = pool(x, 0, lax.add, window_shape, strides, padding)
    if count_include_pad:
        return total / math.prod(map(int, window_shape))
    # The number of elements in a window depends only on its position: count them for one example and one channel.
    n_spatial = len(window_shape)
    ones = jnp.ones((*x.shape[x.ndim - n_spatial - 1 : -1], 1), x.dtype)
    counts = pool(ones, 0, lax.add, window_shape, strides, padding)
    return total / jnp.reshape(counts, (1,) * (total.ndim - counts.ndim) + counts.shape)
