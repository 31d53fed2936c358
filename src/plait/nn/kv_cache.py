"""The cache of a decoder: keys and values of the steps so far, written one position at a time. (rule L28)

The arrays are ``(..., length, heads, features)``. A step is computed first and stored by its layer afterwards, so that
one that fails leaves the cache as it was.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from .._compat import Tracer
from ..core.graph.locate import describe_place
from ..core.objects.variables import Cache
from ..errors import ArgumentError, ShapeError
from ..typing import Array, DTypeLike, Shape
from .checks import shape_of
from .promotion import as_dtype


def empty_cache(
    input_shape: Shape, heads: int, features: int, dtype: DTypeLike, *, layer: Any
) -> tuple[Cache[Array], Cache[Array], Cache[Array]]:
    """Keys, values and the index of the next step, for an input of a shape ``(..., length, in_features)``."""
    if len(input_shape) < 2:
        raise ShapeError(
            "a cache holds one key and value for each position of the input",
            at=describe_place(layer),
            found=f"input_shape={tuple(input_shape)}",
            expected="(..., length, in_features)",
            do="give the shape of the whole input, with as many positions as there will be steps",
        )
    shape = (*input_shape[:-1], heads, features)
    return Cache(jnp.zeros(shape, dtype)), Cache(jnp.zeros(shape, dtype)), Cache(jnp.zeros((), jnp.int32))


def check_step(cached_key: Cache[Array] | None, cache_index: Cache[Array] | None, key: Array, *, layer: Any) -> Array:
    """The index of a step, whose key the cache must be able to take.

    Raises:
        ArgumentError: there is no cache, or it is full, as far as that is known while tracing.
        ShapeError: the step is not one position, or has other batch axes.
    """
    kind = type(layer).__name__
    if cached_key is None or cache_index is None:
        raise ArgumentError(
            f"a {kind} has no cache to decode with",
            at=describe_place(layer),
            found="decode=True before init_cache",
            expected="a cache made by init_cache",
            do="call layer.init_cache((*batch, length, in_features)) before the first step, or take "
            "plait.view(model, decode=True, batch_size=..., max_length=...)",
        )
    *batch, length, heads, features = cached_key.shape
    if shape_of(key) != (*batch, 1, heads, features):
        raise ShapeError(
            f"a step of decoding does not fit the cache of the {kind}",
            at=describe_place(layer),
            found=f"keys of shape {shape_of(key)} for a cache of shape {cached_key.shape}",
            expected=f"keys of shape {(*batch, 1, heads, features)}: one position",
            do="give one position of the input, x[..., t : t + 1, :], or make the cache anew with layer.init_cache",
        )
    index = cache_index.value
    if not isinstance(index, Tracer) and int(index) >= length:
        raise ArgumentError(
            f"a {kind} decodes past the end of its cache",
            at=describe_place(layer),
            found=f"step {int(index) + 1} with a cache of {length} positions",
            expected=f"at most {length} steps",
            do="make a longer cache, or an empty one, with layer.init_cache",
        )
    return index


def with_step(cached: Array, step: Array, index: Array) -> Array:
    """The cached keys or values and those of one more step."""
    return lax.dynamic_update_slice_in_dim(cached, as_dtype(step, cached.dtype), index, axis=cached.ndim - 3)


def past_mask(cached: Array, index: Array) -> Array:
    """The mask of one query that leaves out the places after its own: ``(1, ..., 1, 1, length)``."""
    length = cached.shape[-3]
    past = jnp.arange(length, dtype=jnp.int32) <= index
    return jnp.reshape(past, (1,) * (cached.ndim - 1) + (length,))
