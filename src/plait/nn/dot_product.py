"""Dot-product attention: each query takes a weighted mean of the values, by the similarity of their keys. (rule F4)

There are two implementations. ``jax.nn.dot_product_attention`` is used whenever possible: its fused kernels never store
all the weights. If the weights themselves are needed (for dropout or to sow them), or if JAX's function does not
support the arguments (values of a different depth, a precision, float64), they are computed here. Either way, logits
and softmax are in float32 or wider.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ..core.nodes.module import Module
from ..core.variables.variable_kinds import Intermediate
from ..errors import ArgumentError, ShapeError, StreamError
from ..typing import Array, ArrayLike, DTypeLike, PrecisionLike, PRNGKey
from ..util.jax_versions import explicit_sharding, promotes_nothing
from .promotion import as_dtype, common_dtype, promote_dtype

Implementation = Literal["xla", "cudnn"]


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: PRNGKey | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: Callable[..., Any] = promote_dtype,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    implementation: Implementation | None = None,
) -> Array:
    """Attention: ``softmax(query · keyᵀ / sqrt(D) + bias) · value``.

    If keys and values have fewer heads than queries, each key head serves a group of adjacent query heads
    (arXiv:2305.13245). A query for which the mask allows no key gets the plain mean of the values.

    Shapes:
        query: ``(..., Tq, H, D)``. key: ``(..., Tk, Hk, D)``. value: ``(..., Tk, Hk, Dv)``; ``Hk`` divides ``H``.
        bias, mask: broadcast to ``(..., H, Tq, Tk)``.
        result: ``(..., Tq, H, Dv)``.

    Args:
        query: the queries.
        key: the keys.
        value: the values.
        bias: added to the logits.
        mask: which keys each query may attend to: those whose entry is not zero.
        broadcast_dropout: whether all heads and batch entries drop the same weights.
        dropout_rng: the random key for dropout; used if the rate is positive and ``deterministic`` is not set.
        dropout_rate: the probability with which a weight is dropped, less than 1.
        deterministic: whether to drop nothing.
        dtype: dtype to compute in; ``None`` means the common dtype of query, key and value.
        precision: of the products; see ``jax.lax.Precision``.
        module: sows the weights, before dropout, as ``attention_weights`` of kind ``Intermediate``.
        promote_dtype: replaces the function that brings query, key and value to one dtype.
        is_causal: whether query ``i`` may only attend to keys up to ``i``.
        scale: what the products are multiplied by; ``None`` means ``1 / sqrt(D)``.
        soft_cap: bound of the scaled products, which become ``soft_cap · tanh(products / soft_cap)``; ``None`` is none.
        implementation: that of ``jax.nn.dot_product_attention``: ``"cudnn"`` requests the fused kernel on a GPU,
            which takes bfloat16 and float16; ``None`` lets JAX choose.

    Raises:
        ShapeError: the ranks, batch axes, lengths, heads or depths do not match, or a mask or bias does not broadcast.
        StreamError: dropout is on, but ``dropout_rng`` is ``None``.
        ArgumentError: the rate is not in [0, 1); or an ``implementation`` is requested, but
            ``jax.nn.dot_product_attention`` cannot be used.

    Example:
        >>> key = jnp.eye(2).reshape(2, 1, 2)  # two keys, one head, two features
        >>> value = jnp.array([3.0, 4.0]).reshape(2, 1, 1)
        >>> plait.dot_product_attention(100 * key, key, value).ravel().tolist()
        [3.0, 4.0]
        >>> plait.dot_product_attention(0 * key, key, value, is_causal=True).ravel().tolist()
        [3.0, 3.5]

    Reference: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762.
    """
    _check_rate(dropout_rate)
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    _check_operands({"query": query, "key": key, "value": value})
    bias, mask = _fitted(bias, query, key, "bias"), _fitted(mask, query, key, "mask")
    dropping = dropout_rate > 0 and not deterministic
    obstacle = _obstacle(query, key, value, precision, dropping, module, soft_cap)
    if dropout_rate > 0 or module is not None:
        query, scale = _scaled(query, scale)
    if obstacle is None:
        return _jax_attention(query, key, value, bias, mask, is_causal, implementation, scale)
    if implementation is not None:
        raise ArgumentError(
            f"this attention cannot be computed by implementation={implementation!r}",
            found=obstacle,
            expected="no dropout, sown weights, precision or soft cap, equal shapes of keys and values, up to float32",
            do="omit implementation: plait then chooses one",
        )
    weights = _weights(query, key, bias, mask, is_causal, precision, module, scale, soft_cap)
    if dropping:
        weights = _dropped(weights, dropout_rate, dropout_rng, broadcast_dropout)
    return _weighted_mean(weights, value, precision)


def dot_product_attention_weights(
    query: ArrayLike,
    key: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: PRNGKey | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    promote_dtype: Callable[..., Any] = promote_dtype,
    is_causal: bool = False,
) -> Array:
    """The weights of ``dot_product_attention``: ``softmax(query · keyᵀ / sqrt(D) + bias)``, ``(..., H, Tq, Tk)``.

    The arguments are those of ``dot_product_attention``.

    Example:
        >>> from plait.nn.attention import dot_product_attention_weights
        >>> x = jnp.zeros((2, 1, 4))
        >>> dot_product_attention_weights(x, x, is_causal=True).tolist()
        [[[1.0, 0.0], [0.5, 0.5]]]
    """
    _check_rate(dropout_rate)
    query, key = promote_dtype((query, key), dtype=dtype)
    query, key = jnp.asarray(query), jnp.asarray(key)
    _check_operands({"query": query, "key": key})
    bias, mask = _fitted(bias, query, key, "bias"), _fitted(mask, query, key, "mask")
    query, scale = _scaled(query, None)
    weights = _weights(query, key, bias, mask, is_causal, precision, module, scale, None)
    if dropout_rate > 0 and not deterministic:
        weights = _dropped(weights, dropout_rate, dropout_rng, broadcast_dropout)
    return weights


def _check_rate(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ArgumentError(
            "attention cannot drop its weights at this rate",
            found=f"dropout_rate={rate}",
            expected="a number from 0 up to, but not including, 1",
            do="for example dropout_rate=0.1",
        )


def _check_operands(operands: dict[str, Array]) -> None:
    """Ranks, batch axes, heads, depths and lengths of query, key and (if given) value must match."""
    query, key, value = operands["query"], operands["key"], operands.get("value", operands["key"])
    if min(x.ndim for x in operands.values()) < 3 or len({x.ndim for x in operands.values()}) > 1:
        wrong, do = "must have equal rank, of at least 3", "add the missing axes: (..., length, heads, features)"
    elif not query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        wrong, do = "must have equal batch axes", "broadcast them first, with jnp.broadcast_to"
    elif query.shape[-1] != key.shape[-1]:
        wrong, do = "must have equal depth of queries and keys", "project both to the same number of features"
    elif key.shape[-3] != value.shape[-3]:
        wrong, do = "must have equal lengths of keys and values", "pass one value for each key"
    elif key.shape[-2] != value.shape[-2] or key.shape[-2] == 0 or query.shape[-2] % key.shape[-2]:
        wrong = "must have as many heads of keys as of values, which divide the heads of queries"
        do = "for grouped queries, make the number of query heads a multiple of the number of key and value heads"
    else:
        return
    *names, last = operands
    raise ShapeError(
        f"{', '.join(names)} and {last} of an attention {wrong}",
        found=", ".join(f"{name} {x.shape}" for name, x in operands.items()),
        expected="query (..., Tq, H, D)" + "".join(f", {name} (..., Tk, Hk, D)" for name in list(operands)[1:]),
        do=do,
    )


def _fitted(x: ArrayLike | None, query: Array, key: Array, name: str) -> Array | None:
    """A bias in the dtype of the logits, or a boolean mask, with as many axes as the weights."""
    if x is None:
        return None
    x = jnp.asarray(x)
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    extra = x.ndim - len(shape)
    own = x.shape[max(extra, 0) :]
    sizes = zip(own[::-1], shape[::-1], strict=False)
    if any(size != 1 for size in x.shape[: max(extra, 0)]) or any(size not in (1, full) for size, full in sizes):
        raise ShapeError(
            f"the {name} of an attention does not fit its weights",
            found=f"a {name} of shape {x.shape}",
            expected=f"a shape that broadcasts to {shape}: batch, heads, queries, keys",
            do=f"for a {name} without an axis of heads, {name}[..., None, :, :]",
        )
    x = jnp.reshape(x, (1,) * -extra + own)
    return x.astype(bool if name == "mask" else _logits_dtype(query))


def _logits_dtype(query: Array) -> Any:
    return common_dtype(query, jnp.float32)


def _obstacle(
    query: Array,
    key: Array,
    value: Array,
    precision: PrecisionLike,
    dropping: bool,
    module: Module | None,
    soft_cap: float | None,
) -> str | None:
    """Why ``jax.nn.dot_product_attention`` cannot be used here; ``None`` if it can."""
    if dropping:
        return "weights are dropped"
    if module is not None:
        return "weights are sown"
    if precision is not None:
        return f"precision={precision!r}"
    if soft_cap is not None:
        return f"soft_cap={soft_cap}"
    if key.shape != value.shape:
        return f"keys of shape {key.shape}, values of shape {value.shape}"
    dtypes = {x.dtype for x in (query, key, value)}
    if len(dtypes) > 1 or query.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return f"dtype {', '.join(sorted(dtype.name for dtype in dtypes))}"  # its softmax is always in float32
    if query.dtype != jnp.float32 and promotes_nothing():
        return f"dtype {query.dtype.name} with strict dtype promotion"  # it mixes this dtype with float32 inside
    return None


def _jax_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    is_causal: bool,
    implementation: Implementation | None,
    scale: float | None,
) -> Array:
    """``jax.nn.dot_product_attention``, which takes one batch axis or none."""
    batch, shape = query.shape[:-3], query.shape
    if len(batch) > 1:
        query, key, value = (_merged(x, batch, batch) for x in (query, key, value))
        bias, mask = (None if x is None else _merged(x, x.shape[:-3], batch) for x in (bias, mask))
    attend: Any = functools.partial(
        jax.nn.dot_product_attention, scale=scale, is_causal=is_causal, implementation=implementation
    )
    sharding = explicit_sharding(query)
    if sharding is not None:  # inside, JAX maps over heads, which a mask may not have
        attend = jax.sharding.auto_axes(attend, out_sharding=sharding)
    return jnp.reshape(attend(query, key, value, bias, mask), shape)


def _merged(x: Array, given: tuple[int, ...], batch: tuple[int, ...]) -> Array:
    """All batch axes as one; of length 1 if ``x`` is the same for all of them."""
    if all(size == 1 for size in given):
        batch = given
    else:
        x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return jnp.reshape(x, (math.prod(batch), *x.shape[-3:]))


def _weights(
    query: Array,
    key: Array,
    bias: Array | None,
    mask: Array | None,
    is_causal: bool,
    precision: PrecisionLike,
    module: Module | None,
    scale: float | None,
    soft_cap: float | None,
) -> Array:
    """The weights before dropout."""
    logits = _products(query, key, precision)
    if scale != 1:
        logits = logits * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    if bias is not None:
        logits = logits + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool)).reshape((1,) * (logits.ndim - 2) + logits.shape[-2:])
        mask = causal if mask is None else jnp.logical_and(mask, causal)
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    weights = as_dtype(jax.nn.softmax(logits), query.dtype)
    if module is not None:
        module.sow(Intermediate, "attention_weights", weights)
    return weights


def _scaled(query: Array, scale: float | None) -> tuple[Array, float | None]:
    """The queries, scaled in place of the products, and the scale that is left.

    Flax scales them for weights and for every rate of dropout, by a root that is computed: XLA multiplies instead of
    dividing by a constant. Half precision would be rounded more.
    """
    if _logits_dtype(query) != query.dtype:
        return query, scale
    if scale is not None:
        return query * scale, 1.0
    return query / jnp.sqrt(query.shape[-1]).astype(query.dtype), 1.0


def _products(query: Array, key: Array, precision: PrecisionLike) -> Array:
    """The product of each query with each key of its head: ``(..., H, Tq, Tk)``."""
    options = {"precision": precision, "preferred_element_type": _logits_dtype(query)}
    if query.shape[-2] == key.shape[-2]:
        return jnp.einsum("...qhd,...khd->...hqk", query, key, **options)
    *batch, length, heads, depth = query.shape
    kv_heads = key.shape[-2]
    query = jnp.reshape(query, (*batch, length, kv_heads, heads // kv_heads, depth))
    products = jnp.einsum("...qhgd,...khd->...hgqk", query, key, **options)
    return jnp.reshape(products, (*batch, heads, length, key.shape[-3]))


def _weighted_mean(weights: Array, value: Array, precision: PrecisionLike) -> Array:
    """The weighted mean of the values of each head: ``(..., Tq, H, Dv)``."""
    *batch, heads, n_queries, n_keys = weights.shape
    kv_heads = value.shape[-2]
    if heads == kv_heads:
        return jnp.einsum("...hqk,...khd->...qhd", weights, value, precision=precision)
    weights = jnp.reshape(weights, (*batch, kv_heads, heads // kv_heads, n_queries, n_keys))
    means = jnp.einsum("...hgqk,...khd->...qhgd", weights, value, precision=precision)
    return jnp.reshape(means, (*batch, n_queries, heads, value.shape[-1]))


def _dropped(weights: Array, rate: float, rng: PRNGKey | None, broadcast: bool) -> Array:
    """The weights, each zero with probability ``rate`` and scaled up otherwise."""
    if rng is None:
        raise StreamError(
            "attention has no random key for dropout",
            found=f"dropout_rate={rate} and dropout_rng=None",
            expected="a key",
            do="pass dropout_rng=jax.random.key(0), or deterministic=True to drop nothing",
        )
    shape = (1,) * (weights.ndim - 2) + weights.shape[-2:] if broadcast else weights.shape
    kept = jax.random.bernoulli(rng, 1 - rate, shape)
    return jnp.where(kept, weights / (1 - rate), jnp.zeros_like(weights))
