"""Dtype promotion of a layer's inputs and parameters. (rule L3)

Layers apply their own promotion rule, so they also work under strict promotion
(``jax_numpy_dtype_promotion="strict"``).
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.locate import path_of_value
from ..core.variables.cells import is_unusable, unusable
from ..errors import ArgumentError
from ..typing import Array, DTypeLike

T = TypeVar("T", bound="tuple[Any, ...] | list[Any]")


def common_dtype(*values: Any) -> np.dtype:
    """The dtype that JAX's standard promotion gives for arrays, scalars or dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def canonicalize_dtype(*args: Any, dtype: DTypeLike | None = None, inexact: bool = True) -> np.dtype:
    """The dtype of a computation.

    Args:
        *args: arrays or scalars; ``None`` is ignored.
        dtype: the requested dtype; ``None`` means the common dtype of ``args``.
        inexact: whether the result must be a float or complex type; common integer types are then promoted to
            at least float32.

    Raises:
        ArgumentError: ``dtype`` is an integer or boolean type and ``inexact`` is set.

    Example:
        >>> from plait.nn.promotion import canonicalize_dtype
        >>> canonicalize_dtype(jnp.ones(2, jnp.bfloat16), None).name, canonicalize_dtype(jnp.arange(2)).name
        ('bfloat16', 'float32')
    """
    if dtype is None:
        found = common_dtype(*(arg for arg in args if arg is not None))
        if inexact and not jnp.issubdtype(found, jnp.inexact):
            found = common_dtype(found, jnp.float32)
        return found
    if inexact and not jnp.issubdtype(dtype, jnp.inexact):
        raise ArgumentError(
            "a layer cannot compute in this dtype",
            found=f"dtype={jnp.dtype(dtype).name}",
            expected="an inexact dtype: a float or complex type",
            do="use for example dtype=jnp.bfloat16, or dtype=None for the common dtype of input and parameters",
        )
    return jnp.dtype(dtype)


def promote_dtype(args: T, /, *, dtype: DTypeLike | None = None, inexact: bool = True) -> T:
    """Promote arrays and scalars to arrays of one dtype; ``None`` stays ``None``.

    Args:
        args: a tuple or list of arrays, scalars and ``None``.
        dtype: the dtype; ``None`` means the common dtype (see ``canonicalize_dtype``).
        inexact: whether it must be a float or complex type.

    Raises:
        DonatedArrayError: an array was donated or deleted; names the path of its variable.
        ArgumentError: there is a shape instead of an array; names the path of its variable.

    Example:
        >>> from plait.nn.promotion import promote_dtype
        >>> [x if x is None else x.dtype.name for x in promote_dtype((jnp.arange(2), None, jnp.ones(2)))]
        ['float32', None, 'float32']
    """
    if any(map(is_unusable, args)):
        value = next(filter(is_unusable, args))
        raise unusable(value, path_of_value(value))
    found = None
    if dtype is None:
        kinds = {arg.dtype if isinstance(arg, jax.Array) else None for arg in args if arg is not None}
        found = kinds.pop() if len(kinds) == 1 else None  # of arrays that share it: the usual case
    if found is None or (inexact and not jnp.issubdtype(found, jnp.inexact)):
        found = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    return type(args)(None if arg is None else as_dtype(arg, found) for arg in args)  # type: ignore[return-value]


def as_dtype(x: Any, dtype: DTypeLike) -> Array:
    """The array in a dtype; the same object if it already has that dtype."""
    if isinstance(x, jax.Array):
        return x if x.dtype == dtype and not x.weak_type else jax.lax.convert_element_type(x, dtype)
    return jnp.asarray(x, dtype)


def add_bias(y: Array, bias: Array | None) -> Array:
    """Add a bias to the last axes of ``y``, in their common dtype.

    Shapes:
        y: ``(..., *bias.shape)``. bias: ``(*features,)``.
    """
    if bias is None:
        return y
    if y.dtype != bias.dtype:
        dtype = common_dtype(y, bias)
        y, bias = as_dtype(y, dtype), as_dtype(bias, dtype)
    with promoted_ranks():
        return y + bias


def promoted_ranks() -> contextlib.AbstractContextManager[None]:
    """Where a vector is aligned with the last axis, as by default. It is traced in half the time of a reshape."""
    is_default = jax.numpy_rank_promotion.value == "allow"
    return contextlib.nullcontext() if is_default else jax.numpy_rank_promotion("allow")
