"""Rotary position embedding (RoPE): rotates queries and keys by angles proportional to their positions.

The product of a query and a key then depends only on their distance.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ShapeError
from ..typing import Array, ArrayLike, DTypeLike, Shape
from .checks import check_min_rank
from .dot_product import dot_product_attention
from .promotion import as_dtype, common_dtype


def apply_rotary_embedding(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    base: float = 10_000.0,
    interleaved: bool = True,
    frequencies: ArrayLike | None = None,
    scale: float = 1.0,
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
        frequencies: ``(pairs,)``: the angle of each pair at position 1, in place of those of ``base``. With fewer pairs
            than ``x`` has, the first ``2 · pairs`` features are rotated, and the others stay as they are.
        scale: what the rotated features are multiplied by.

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
    if frequencies is None:
        frequencies = _frequencies(features, base, dtype)
    frequencies = as_dtype(jnp.asarray(frequencies), dtype)
    sin, cos = (table[..., None, :] for table in _tables(positions, frequencies))
    if scale != 1:
        sin, cos = scale * sin, scale * cos
    rotated = 2 * frequencies.shape[0]
    y = _turned(x[..., :rotated], sin, cos, interleaved=interleaved)
    if rotated < features:
        y = jnp.concatenate([y, as_dtype(x[..., rotated:], y.dtype)], axis=-1)
    return as_dtype(y, x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else dtype)


class RoPE(Module):
    """``apply_rotary_embedding`` with half-split pairs, as a module with optional tables; for inputs without heads.

    ``dot_product_attention_with_rope`` applies it to queries and keys. While decoding, use the ``rotary_fn`` of
    ``plait.MultiHeadAttention`` instead, which knows the position of each step.

    Shapes:
        x, result: ``(..., length, features)``. input_positions: ``(..., length)``; its batch axes broadcast. The result
        is float32, or wider if ``x`` is.

    Variables:
        cached_sin, cached_cos: ``Variable``, ``(max_seq_len, embedding_size / 2)``, float32: the tables; ``None``
            without sizes.

    Args:
        theta: base of the angles.
        embedding_size: the number of features, for the tables.
        max_seq_len: the number of positions in the tables, which serve calls without positions.

    Raises:
        ArgumentError: only one of the two sizes is given, or ``embedding_size`` is odd.
        ShapeError: the number of features is odd or not ``embedding_size``, ``x`` has fewer than two axes or more
            positions than the tables, or the positions do not broadcast.

    Example:
        >>> rope = plait.RoPE(embedding_size=2, max_seq_len=8)
        >>> print(rope(jnp.array([[1.0, 0.0]]), jnp.array([jnp.pi / 3])).round(2))
        [[0.5  0.87]]

    Reference: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, arXiv:2104.09864.
    """

    def __init__(
        self, theta: float = 10_000.0, embedding_size: int | None = None, max_seq_len: int | None = None
    ) -> None:
        self.theta, self.embedding_size, self.max_seq_len = theta, embedding_size, max_seq_len
        self.cached_sin: Variable[Array] | None = None
        self.cached_cos: Variable[Array] | None = None
        if (embedding_size is None) != (max_seq_len is None) or (embedding_size or 0) % 2:
            raise ArgumentError(
                "the tables of a RoPE cannot be made",
                found=f"embedding_size={embedding_size} and max_seq_len={max_seq_len}",
                expected="both, with an even embedding_size, or neither",
                do="for example plait.RoPE(embedding_size=64, max_seq_len=128)",
            )
        if embedding_size is not None and max_seq_len is not None:
            sin, cos = _tables(jnp.arange(max_seq_len), _frequencies(embedding_size, theta, jnp.float32))
            self.cached_sin, self.cached_cos = Variable(sin), Variable(cos)

    def __call__(self, x: ArrayLike, input_positions: ArrayLike | None = None) -> Array:
        check_min_rank(x, 2, "(..., length, features)", layer=self)
        x = jnp.asarray(x)
        length, features = x.shape[-2:]
        if input_positions is None and self.cached_sin is not None and self.cached_cos is not None:
            self._check_tables(x.shape, self.cached_sin.shape)
            return _turned(x, self.cached_sin[:length], self.cached_cos[:length], interleaved=False)
        _check_features(x, heads=False)
        positions = jnp.arange(length) if input_positions is None else jnp.asarray(input_positions)
        _check_positions(positions, x, heads=False)
        dtype = common_dtype(x, jnp.float32)
        return _turned(x, *_tables(positions, _frequencies(features, self.theta, dtype)), interleaved=False)

    def _check_tables(self, shape: Shape, tables: Shape) -> None:
        if shape[-2] > tables[0] or shape[-1] != 2 * tables[1]:
            raise ShapeError(
                "an input does not fit the tables of a RoPE",
                at=describe_place(self),
                found=f"an input of shape {shape}",
                expected=f"at most {tables[0]} positions of {2 * tables[1]} features",
                do="create it with a larger max_seq_len, or without sizes, or pass input_positions",
            )


def dot_product_attention_with_rope(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    rope: RoPE,
    input_positions: ArrayLike | None = None,
    **kwargs: Any,
) -> Array:
    """``dot_product_attention`` of queries and keys that ``rope`` has rotated.

    It can be the ``attention_fn`` of ``plait.MultiHeadAttention``, whose ``input_positions`` it then gets.

    Shapes:
        query: ``(..., Tq, H, D)``. key: ``(..., Tk, Hk, D)``. value: ``(..., Tk, Hk, Dv)``.
        input_positions: ``(..., T)``, those of the queries and of the keys; its batch axes broadcast.
        result: ``(..., Tq, H, Dv)``.

    Args:
        rope: rotates each head.
        input_positions: the positions; ``None`` counts from 0.
        **kwargs: those of ``plait.dot_product_attention``.

    Raises:
        ShapeError: as from ``RoPE`` and ``plait.dot_product_attention``.

    Example:
        >>> import functools
        >>> attention = functools.partial(plait.dot_product_attention_with_rope, rope=plait.RoPE())
        >>> layer = plait.MultiHeadAttention(2, 8, attention_fn=attention, decode=False, rngs=plait.Rngs(0))
        >>> layer(jnp.ones((3, 8)), input_positions=jnp.array([4, 5, 6])).shape
        (3, 8)
    """
    positions = None if input_positions is None else jnp.asarray(input_positions)[..., None, :]

    def rotated(x: ArrayLike) -> Array:
        x = jnp.asarray(x)
        _check_features(x)
        if positions is not None:
            _check_positions(positions[..., 0, :], x)
        return jnp.swapaxes(rope(jnp.swapaxes(x, -3, -2), positions), -3, -2)

    return dot_product_attention(rotated(query), rotated(key), value, **kwargs)


def _frequencies(features: int, base: float, dtype: DTypeLike) -> Array:
    """The angle of each pair at position 1."""
    return base ** (-jnp.arange(0, features, 2, dtype=dtype) / features)


def _tables(positions: Array, frequencies: Array) -> tuple[Array, Array]:
    """The sines and cosines of the angles: ``(*positions.shape, pairs)``."""
    angles = as_dtype(positions, frequencies.dtype)[..., None] * frequencies.reshape((1,) * positions.ndim + (-1,))
    return jnp.sin(angles), jnp.cos(angles)


def _turned(x: Array, sin: Array, cos: Array, *, interleaved: bool) -> Array:
    """``x`` in the dtype of the tables or a wider one, with each pair of features turned."""
    sin, cos = (jnp.expand_dims(table, tuple(range(x.ndim - table.ndim))) for table in (sin, cos))
    x = as_dtype(x, common_dtype(x, sin))
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, axis=-1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return jnp.stack(turned, axis=-1).reshape(x.shape) if interleaved else jnp.concatenate(turned, axis=-1)


def _check_features(x: Array, *, heads: bool = True) -> None:
    if x.ndim < 2 + heads or x.shape[-1] % 2:
        raise ShapeError(
            "a rotary embedding rotates pairs of features" + " of each head" * heads,
            found=f"an input of shape {x.shape}",
            expected=f"shape (..., length, {'heads, ' * heads}features) with an even number of features",
            do="choose an even number of features" + (" for each head, and split the heads first" if heads else ""),
        )


def _check_positions(positions: Array, x: Array, *, heads: bool = True) -> None:
    allowed = x.shape[: -1 - heads]
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
