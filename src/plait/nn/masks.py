"""Attention masks: which keys each query may attend to. (rules F5, F6)

A mask has the shape of the attention weights, ``(..., heads, query length, key length)``, or broadcasts to it. A query
may attend to the keys whose entries are not zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..errors import ShapeError
from ..typing import Array, ArrayLike, DTypeLike


def make_attention_mask(
    query_input: ArrayLike,
    key_input: ArrayLike,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: DTypeLike = jnp.float32,
) -> Array:
    """A mask from a comparison of each query position with each key position.

    Shapes:
        query_input: ``(..., Tq)``. key_input: ``(..., Tk)``.
        result: ``(*(1,) * extra_batch_dims, ..., 1, Tq, Tk)``.

    Args:
        query_input: one number for each query position, for example 1 for a token and 0 for padding.
        key_input: one number for each key position.
        pairwise_fn: what to compute from ``(..., Tq, 1)`` and ``(..., 1, Tk)``.
        extra_batch_dims: how many axes of length 1 to put in front.
        dtype: dtype of the mask.

    Raises:
        ShapeError: an input is a scalar, or the batch axes do not match.

    Example:
        >>> tokens = jnp.array([5, 7, 0])  # 0 is padding
        >>> plait.make_attention_mask(tokens > 0, tokens > 0)[0].tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    query_input, key_input = jnp.asarray(query_input), jnp.asarray(key_input)
    for name, x in (("query_input", query_input), ("key_input", key_input)):
        _check_has_length(x, name)
    queries, keys = query_input[..., :, None], key_input[..., None, :]
    ndim = max(queries.ndim, keys.ndim)
    queries, keys = (jnp.expand_dims(x, tuple(range(ndim - x.ndim))) for x in (queries, keys))
    if any(q != k and 1 not in (q, k) for q, k in zip(queries.shape[:-2], keys.shape[:-2], strict=True)):
        raise ShapeError(
            "the batch axes of a mask's two inputs do not match",
            found=f"query_input of shape {query_input.shape} and key_input of shape {key_input.shape}",
            expected="equal axes before the last, or axes of length 1",
            do="pass inputs that both have the batch axes of the attention's inputs",
        )
    mask = jnp.expand_dims(pairwise_fn(queries, keys), -3)
    return jnp.expand_dims(mask, tuple(range(extra_batch_dims))).astype(dtype)


def make_causal_mask(x: ArrayLike, extra_batch_dims: int = 0, dtype: DTypeLike = jnp.float32) -> Array:
    """The mask that lets each position attend to itself and to earlier ones.

    Shapes:
        x: ``(..., T)``; only the shape is used. result: ``(*(1,) * extra_batch_dims, ..., 1, T, T)``.

    Args:
        x: an array with the batch axes and the length of the input.
        extra_batch_dims: how many axes of length 1 to put in front.
        dtype: dtype of the mask.

    Raises:
        ShapeError: ``x`` is a scalar.

    Example:
        >>> plait.make_causal_mask(jnp.zeros(3))[0].tolist()
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    x = jnp.asarray(x)
    _check_has_length(x, "x")
    positions = jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def combine_masks(*masks: ArrayLike | None, dtype: DTypeLike = jnp.float32) -> Array | None:
    """The conjunction of masks; ``None`` if there are none.

    Shapes:
        masks: equal rank; axes of length 1 are broadcast. result: their common shape.

    Args:
        *masks: masks, or ``None`` for none.
        dtype: dtype of the mask; a single mask keeps its values.

    Raises:
        ShapeError: the masks differ in rank, or do not broadcast to each other.

    Example:
        >>> tokens = jnp.array([5, 7, 0])
        >>> padding = plait.make_attention_mask(tokens > 0, tokens > 0)
        >>> plait.combine_masks(plait.make_causal_mask(tokens), None, padding)[0].tolist()
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    given = [jnp.asarray(mask) for mask in masks if mask is not None]
    if not given:
        return None
    ranks = {mask.ndim for mask in given}
    if len(ranks) > 1 or any(len(set(sizes) - {1}) > 1 for sizes in zip(*(mask.shape for mask in given), strict=True)):
        raise ShapeError(
            "these masks cannot be combined",
            found=f"masks of shapes {', '.join(str(mask.shape) for mask in given)}",
            expected="masks of equal rank that broadcast to each other",
            do="add the missing axes, for example mask[:, None] for a mask without an axis of heads",
        )
    if len(given) == 1:
        return given[0].astype(dtype)
    return functools.reduce(jnp.logical_and, [mask.astype(bool) for mask in given]).astype(dtype)


def _check_has_length(x: Array, name: str) -> None:
    if x.ndim == 0:
        raise ShapeError(
            "the inputs of a mask need an axis of positions",
            found=f"{name} of shape ()",
            expected="shape (..., length)",
            do="pass one number for each position, for example jnp.ones((batch, length))",
        )
