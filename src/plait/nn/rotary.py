"""Rotary position embedding (RoPE): rotates queries and keys by angles proportional to their positions.

The product of a query and a key then depends only on their distance.
"""

from __future__ import annotations

import jax.numpy as jnp

from ..errors import ShapeError
from ..typing import Array, ArrayLike
from .promotion import as_dtype, common_dtype


def apply_rotary_embedding(
    x: ArrayLike, positions: ArrayLike | None = None, *, base: float = 10_000.0, interleaved: bool = True
) -> Array:
    """Rotate pairs of features: pair ``i`` at position ``p`` by the angle ``p · base^(−2i / features)``.

    There are two conventions for the pairs, and weights trained with one do not work with the other:

    * interleaved, as in the paper: features ``2i`` and ``2i + 1``;
    * half-split, as in GPT-NeoX and in most published checkpoints of Llama: features ``i`` and ``i + features / 2``.

    Pass it to ``plait.MultiHeadAttention`` as ``rotary_fn``, or call it on queries and keys before
    ``plait.dot_product_attention``.

    Shapes:
        x, result: ``(..., length, heads, features)``. positions: ``(..., length)``; its batch axes broadcast.

    Args:
        x: queries or keys.
        positions: the positions, integers or not; ``None`` counts from 0.
        base: base of the angles; the larger it is, the slower the last pairs rotate.
        interleaved: whether to use the first convention.

    Raises:
        ShapeError: the number of features is odd, ``x`` has fewer than three axes, or the positions do not broadcast.

    Example:
        >>> x = jnp.array([1.0, 0.0]).reshape(1, 1, 2)  # one step, one head, one pair
        >>> print(plait.apply_rotary_embedding(x, jnp.array([jnp.pi / 3])).round(2).ravel())
        [0.5  0.87]

    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864.
    """
    x = jnp.asarray(x)
    _check_features(x)
    length, features = x.shape[-3], x.shape[-1]
    positions = jnp.arange(length) if positions is None else jnp.asarray(positions)
    _check_positions(positions, x)
    dtype = common_dtype(x, jnp.float32)  # in bfloat16, positions 256 and 257 are equal
    frequencies = base ** (-jnp.arange(0, features, 2, dtype=dtype) / features)
    angles = as_dtype(positions, dtype)[..., None, None] * frequencies.reshape((1,) * (positions.ndim + 1) + (-1,))
    angles = jnp.expand_dims(angles, tuple(range(x.ndim - angles.ndim)))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    wide = as_dtype(x, dtype)
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = wide[..., : features // 2], wide[..., features // 2 :]
    turned = (first * cos - second * sin, first * sin + second * cos)
    y = jnp.stack(turned, axis=-1).reshape(x.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return as_dtype(y, x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else dtype)


def _check_features(x: Array) -> None:
    if x.ndim < 3 or x.shape[-1] % 2:
        raise ShapeError(
            "a rotary embedding rotates pairs of features of each head",
            found=f"an input of shape {x.shape}",
            expected="shape (..., length, heads, features) with an even number of features",
            do="split the heads first, and choose an even number of features for each",
        )


def _check_positions(positions: Array, x: Array) -> None:
    allowed = x.shape[:-2]
    fits = 0 < positions.ndim <= len(allowed) and all(
        p in (1, size) for p, size in zip(positions.shape[::-1], allowed[::-1], strict=False)
    )
    if not fits:
        raise ShapeError(
            "the positions of a rotary embedding do not fit its input",
            found=f"positions of shape {positions.shape} for an input of shape {x.shape}",
            expected=f"a shape that broadcasts to {allowed}: one position for each step",
            do="for example jnp.arange(length), or omit positions to count from 0",
        )
