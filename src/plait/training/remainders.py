"""Sums and counts of more digits than their dtype has: what a variable rounds off is in a ``Remainder`` beside it.

The variable alone is the rounded value, in the dtype that programs expect. A remainder that does not belong to its
variable, because the variable was written or restored without it, is 0. (rule O12)
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..typing import Array


def added(total: Array, rest: Array, value: Array) -> tuple[Array, Array]:
    """A sum in float32 and its remainder, after a value in float32 or float64 (Knuth's two-sum)."""
    wide = total.astype(value.dtype)
    new = wide + value
    part = new - wide
    error = (wide - (new - part)) + (value - part) + remainder(total, rest).astype(value.dtype)
    found = (new + error).astype(total.dtype)
    left = ((new - found.astype(value.dtype)) + error).astype(total.dtype)
    is_finite = jnp.isfinite(new)  # an infinite sum has no remainder
    return jnp.where(is_finite, found, new.astype(total.dtype)), jnp.where(is_finite, left, 0)


def remainder(total: Array, rest: Array) -> Array:
    """The remainder of a sum; 0 if it is not one, because the sum was written or restored without it."""
    return jnp.where((total.astype(rest.dtype) + rest).astype(total.dtype) == total, rest, 0)


def carried(old: Array, new: Array, rest: Array) -> tuple[Array, Array]:
    """A count after an addition that may have wrapped, and its carries: what the count is less, in halves of its range.

    A count that has carries stays in the upper half, so that it never looks small.
    """
    wrapped = new < old
    return jnp.where(wrapped, new - _half(new), new), carries(old, rest) + wrapped.astype(rest.dtype)


def carries(count: Array, rest: Array) -> Array:
    """The carries of a count; 0 if they are not its own, because it was written or restored without them."""
    return jnp.where(count >= _half(count), rest, 0)


def as_number(count: Array, rest: Array) -> Array:
    """A count and its carries in float32."""
    return count.astype(jnp.float32) + carries(count, rest).astype(jnp.float32) * _half(count).astype(jnp.float32)


def _half(count: Array) -> Array:
    return jnp.asarray(jnp.iinfo(count.dtype).max // 2 + 1, count.dtype)


def wide_dtype(dtype: Any) -> Any:
    """The dtype in which values of a dtype are summed: float32, or their own if it is wider."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
