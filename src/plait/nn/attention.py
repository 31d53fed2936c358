"""Multi-head attention: several attentions in parallel, each over its own projections of the input.

While decoding, a cache stores the keys and values of earlier steps, so each step projects only the new position.
(rules L27, L28)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module, around_change
from ..core.rngs import Rngs, RngStream
from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..typing import Array, ArrayLike, DTypeLike, Initializer, PrecisionLike, Shape
from ..util.static_values import HashableMapping
from .checks import check_last_axis, check_min_rank, resolve_switch, weight_length
from .dot_product import (
    dot_product_attention as dot_product_attention,
    dot_product_attention_weights as dot_product_attention_weights,
)
from .dropout import draw_key
from .initializers import default_bias_init, default_kernel_init
from .kv_cache import check_step, empty_cache, past_mask, step_positions, with_step
from .linear import LinearGeneral, as_tuple
from .masks import (
    combine_masks as combine_masks,
    make_attention_mask as make_attention_mask,
    make_causal_mask as make_causal_mask,
)
from .norm import LayerNorm
from .promotion import promote_dtype
from .rotary import dot_product_attention_with_rope


class MultiHeadAttention(Module):
    """Attention of ``num_heads`` heads: ``y = out(attention(query(inputs_q), key(inputs_k), value(inputs_v)))``.

    With ``decode`` each call takes one position, or several (a prompt), and stores their keys and values in a cache;
    call ``init_cache`` first. Each position attends to itself and to earlier ones, with or without ``is_causal``. A
    step past the end of the cache raises an error if the index is known; inside ``jit`` it is not known, and such a
    step overwrites the last positions.

    With ``init_cache(..., per_sequence=True)`` each sequence of the batch has its own position: after a padded prompt,
    set ``cache_index`` to the lengths, and the following steps overwrite the padding.

    Shapes:
        inputs_q: ``(..., Tq, in_features)``. inputs_k, inputs_v: ``(..., Tk, in_kv_features)``.
        mask: broadcasts to ``(..., num_heads, Tq, Tk)``; while decoding ``Tk`` is the length of the cache.
        y: ``(..., Tq, out_features)``.

    Variables:
        query: ``LinearGeneral``, kernel ``(in_features, num_heads, D)``, where ``D = qkv_features / num_heads``.
        key, value: ``LinearGeneral``, kernel ``(in_kv_features, num_kv_heads, D)``.
        query_ln, key_ln: ``LayerNorm`` of ``D`` features without bias; ``None`` without ``normalize_qk``.
        out: ``LinearGeneral``, kernel ``(num_heads, D, out_features)``.
        rngs: a ``RngStream``, a fork of the ``dropout`` stream; ``None`` without ``keep_rngs`` or dropout.
        cached_key, cached_value: ``Cache``, ``(..., length, num_kv_heads, D)``; ``None`` before ``init_cache``.
        cache_index: ``Cache``, ``()``, or the batch axes with ``per_sequence``, int32: how many positions are in the
            cache; ``None`` before ``init_cache``.

    Args:
        num_heads: number of heads.
        in_features: length of the last axis of ``inputs_q``.
        qkv_features: number of features of all heads together; ``None`` means ``in_features``.
        out_features: length of the last axis of ``y``, or lengths of its last axes; ``None`` means ``in_features``.
        num_kv_heads: number of heads of keys and values, each shared by a group of query heads; ``None`` means
            ``num_heads``.
        in_kv_features: length of the last axis of ``inputs_k`` and ``inputs_v``; ``None`` means ``in_features``.
        dtype: dtype to compute in; ``None`` means the common dtype of inputs and parameters.
        param_dtype: dtype in which the parameters are stored.
        broadcast_dropout: whether all heads and batch entries drop the same weights.
        dropout_rate: the probability with which an attention weight is dropped.
        deterministic: whether to drop nothing; ``None`` leaves it to each call. Required only if the rate is positive.
        precision: of the products; see ``jax.lax.Precision``.
        kernel_init: initializer of the kernels.
        out_kernel_init: initializer of the kernel of ``out``; ``None`` means ``kernel_init``.
        bias_init: initializer of the biases.
        out_bias_init: initializer of the bias of ``out``; ``None`` means ``bias_init``.
        use_bias: whether the four projections have a bias.
        attention_fn: replaces ``plait.dot_product_attention``. It is called with query, key and value, and with the
            keywords ``mask, dropout_rng, dropout_rate, broadcast_dropout, deterministic, dtype, precision, module,
            is_causal``.
        decode: whether to decode step by step; ``None`` leaves it to each call.
        normalize_qk: whether to normalise queries and keys before their product (arXiv:2302.05442).
        window: how many positions each one may attend to, itself and those before it; ``None`` sets no bound. With it
            attention is causal, with or without ``is_causal``.
        rotary_fn: rotates queries and keys by their positions: ``(x, positions) -> x``, for example
            ``plait.apply_rotary_embedding``. While decoding the position is the index in the cache.
        qkv_promote_dtype: ``promote_dtype`` of ``query``, ``key`` and ``value``.
        out_promote_dtype: ``promote_dtype`` of ``out``.
        ln_promote_dtype: ``promote_dtype`` of ``query_ln`` and ``key_ln``.
        qkv_dot_general: ``dot_general`` of ``query``, ``key`` and ``value``.
        out_dot_general: ``dot_general`` of ``out``.
        qkv_dot_general_cls: ``dot_general_cls`` of ``query``, ``key`` and ``value``.
        out_dot_general_cls: ``dot_general_cls`` of ``out``.
        rngs: draws one key from the ``params`` stream for each parameter, and one from ``dropout`` for its own stream.
        keep_rngs: whether the layer keeps its own stream for dropout; otherwise pass one in each call.
        kernel_metadata: metadata of the kernels.
        kv_kernel_metadata: metadata of the kernels of ``key`` and ``value``, whose heads may be fewer, such as
            ``{"out_sharding": ("embed", "kv_heads", "head_dim")}``; if empty, that of the kernels.
        out_kernel_metadata: metadata of the kernel of ``out``; if empty, that of the kernels.
        bias_metadata: metadata of the biases.
        kv_bias_metadata: metadata of the biases of ``key`` and ``value``; if empty, that of the biases.
        out_bias_metadata: metadata of the bias of ``out``; if empty, that of the biases.
        query_ln_scale_metadata: metadata of the scale of ``query_ln``.
        key_ln_scale_metadata: metadata of the scale of ``key_ln``.

    Raises:
        ArgumentError: ``num_heads`` does not divide ``qkv_features``, or ``num_kv_heads`` does not divide
            ``num_heads``; a switch is ``None`` here and in the call; values are given without keys; a cache is missing
            or full.
        ShapeError: an input or mask has the wrong shape, or a decoding step does not fit the cache.
        StreamError: neither the layer nor the call has a stream for dropout.
        ArgumentTypeError: the ``rngs`` of a call has the wrong type.

    Example:
        >>> attention = plait.MultiHeadAttention(2, 6, decode=False, rngs=plait.Rngs(0))
        >>> x = jnp.ones((5, 3, 6))
        >>> attention(x).shape, attention(x, jnp.ones((5, 7, 6))).shape
        ((5, 3, 6), (5, 3, 6))

    Reference: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int | Sequence[int],
        qkv_features: int | None = None,
        out_features: int | Sequence[int] | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | Sequence[int] | None = None,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool | None = None,
        use_bias: bool = True,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        out_kernel_init: Initializer | None = None,
        out_bias_init: Initializer | None = None,
        attention_fn: Callable[..., Array] = dot_product_attention,
        normalize_qk: bool = False,
        window: int | None = None,
        decode: bool | None = None,
        precision: PrecisionLike = None,
        rotary_fn: Callable[[Array, Array], Array] | None = None,
        qkv_promote_dtype: Callable[..., Any] = promote_dtype,
        out_promote_dtype: Callable[..., Any] = promote_dtype,
        ln_promote_dtype: Callable[..., Any] = promote_dtype,
        qkv_dot_general: Callable[..., Array] | None = None,
        out_dot_general: Callable[..., Array] | None = None,
        qkv_dot_general_cls: Any = None,
        out_dot_general_cls: Any = None,
        rngs: Rngs,
        keep_rngs: bool = True,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        kv_kernel_metadata: Mapping[str, Any] = HashableMapping(),
        out_kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
        kv_bias_metadata: Mapping[str, Any] = HashableMapping(),
        out_bias_metadata: Mapping[str, Any] = HashableMapping(),
        query_ln_scale_metadata: Mapping[str, Any] = HashableMapping(),
        key_ln_scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.num_heads = num_heads
        self.in_features = in_features
        self.qkv_features = as_tuple(in_features)[-1] if qkv_features is None else qkv_features
        self.out_features = in_features if out_features is None else out_features
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.in_kv_features = in_features if in_kv_features is None else in_kv_features
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.broadcast_dropout = broadcast_dropout
        self.dropout_rate = dropout_rate
        self.deterministic: bool | None = deterministic
        self.decode: bool | None = decode
        self.precision = precision
        self.use_bias = use_bias
        self.attention_fn: Callable[..., Array] = attention_fn
        self.rotary_fn = rotary_fn
        self.normalize_qk = normalize_qk
        self.window = window
        self.keep_rngs = keep_rngs
        self.qkv_promote_dtype = qkv_promote_dtype
        self.out_promote_dtype = out_promote_dtype
        self.ln_promote_dtype: Callable[..., Any] = ln_promote_dtype
        self.qkv_dot_general = qkv_dot_general
        self.out_dot_general = out_dot_general
        self.qkv_dot_general_cls = qkv_dot_general_cls
        self.out_dot_general_cls = out_dot_general_cls
        self._check_heads()
        self.head_dim = self.qkv_features // num_heads

        common: dict[str, Any] = {
            "use_bias": use_bias, "dtype": dtype, "param_dtype": param_dtype, "precision": precision, "rngs": rngs,
        }  # fmt: skip
        projection = {
            **common,
            "kernel_init": kernel_init,
            "bias_init": bias_init,
            "promote_dtype": qkv_promote_dtype,
            "dot_general": qkv_dot_general,
            "dot_general_cls": qkv_dot_general_cls,
            "kernel_metadata": kernel_metadata,
            "bias_metadata": bias_metadata,
        }
        self.query = LinearGeneral(in_features, (num_heads, self.head_dim), **projection)
        of_kv = {
            **projection,
            "kernel_metadata": kv_kernel_metadata or kernel_metadata,
            "bias_metadata": kv_bias_metadata or bias_metadata,
        }
        self.key = LinearGeneral(self.in_kv_features, (self.num_kv_heads, self.head_dim), **of_kv)
        self.value = LinearGeneral(self.in_kv_features, (self.num_kv_heads, self.head_dim), **of_kv)

        def norm(metadata: Mapping[str, Any]) -> LayerNorm | None:
            if not normalize_qk:
                return None
            return LayerNorm(
                self.head_dim,
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                promote_dtype=ln_promote_dtype,
                rngs=rngs,
                scale_metadata=metadata,
            )

        self.query_ln = norm(query_ln_scale_metadata)
        self.key_ln = norm(key_ln_scale_metadata)
        self.out = LinearGeneral(
            (num_heads, self.head_dim),
            self.out_features,
            axis=(-2, -1),
            **common,
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            promote_dtype=out_promote_dtype,
            dot_general=out_dot_general,
            dot_general_cls=out_dot_general_cls,
            kernel_metadata=out_kernel_metadata or kernel_metadata,
            bias_metadata=out_bias_metadata or bias_metadata,
        )
        self.rngs: RngStream | None = rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else None
        self.cached_key: Cache[Array] | Any = None
        self.cached_value: Cache[Array] | Any = None
        self.cache_index: Cache[Array] | Any = None

    def _check_heads(self) -> None:
        divisions = [("qkv_features", self.qkv_features, "num_heads", self.num_heads)]
        divisions += [("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)]
        for whole, size, part, count in divisions:
            if count < 1 or size % count:
                raise ArgumentError(
                    f"{whole} of a MultiHeadAttention cannot be divided among {part}",
                    found=f"{whole}={size} and {part}={count}",
                    expected=f"{whole} that is a multiple of {part}",
                    do=f"choose another {whole}, or a {part} that divides it",
                )

    def __call__(
        self,
        inputs_q: Array,  # (..., queries, in_features)
        inputs_k: Array | None = None,  # (..., keys, in_kv_features)
        inputs_v: Array | None = None,  # as inputs_k
        *,
        is_causal: bool = False,
        mask: Array | None = None,
        decode: bool | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | Array | None = None,
        sow_weights: bool = False,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
        input_positions: Array | None = None,  # (..., queries)
    ) -> Array:
        """Attend from ``inputs_q`` to ``inputs_k``.

        Args:
            inputs_q: projected to the queries.
            inputs_k: projected to the keys; ``None`` means ``inputs_q``.
            inputs_v: projected to the values; ``None`` means ``inputs_k``.
            mask: which keys each query may attend to: those whose entry is not zero.
            deterministic: whether to drop nothing.
            rngs: source of dropout: an ``Rngs``, a stream, or a key; ``None`` means the layer's own stream.
            sow_weights: whether to sow the weights as ``attention_weights`` of kind ``Intermediate``.
            decode: whether this is a decoding step.
            is_causal: whether each position may only attend to itself and to earlier ones.
            out_sharding: sharding of the result.
            qkv_sharding: sharding of the projected queries, keys and values.
            input_positions: positions of queries and keys for ``rotary_fn``; without one, a keyword of
                ``attention_fn``, such as ``plait.dot_product_attention_with_rope``.
        """
        inputs_k, inputs_v = self._inputs(inputs_q, inputs_k, inputs_v)
        decode = resolve_switch("decode", decode, self.decode, layer=self)
        if decode:
            self._check_rotation()
        query = self.query(inputs_q, out_sharding=qkv_sharding)
        key = self.key(inputs_k, out_sharding=qkv_sharding)
        value = self.value(inputs_v, out_sharding=qkv_sharding)
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        step = check_step(self.cached_key, self.cache_index, key, layer=self) if decode else None
        options: dict[str, Any] = {} if input_positions is None else {"input_positions": input_positions}
        if self.rotary_fn is not None:
            given = options.pop("input_positions", None)
            query = self.rotary_fn(query, step_positions(query, step) if given is None else given)
            key = self.rotary_fn(key, step_positions(key, step) if given is None else given)
        past, length = None, key.shape[-3]
        if step is not None:
            key, value = with_step(self.cached_key.value, key, step), with_step(self.cached_value.value, value, step)
        if step is not None or self.window is not None:
            past = past_mask(key, step_positions(query, step), self.window)
            is_causal = False  # that mask is causal; a rule on indices would allow only the first key
        key_for_dropout = None
        if self.dropout_rate > 0:
            deterministic = resolve_switch("deterministic", deterministic, self.deterministic, layer=self)
            if not deterministic:
                source = self.rngs if rngs is None else rngs
                key_for_dropout = draw_key(source, "dropout", layer=self, use="its dropout")
        try:
            y = self.attention_fn(
                query,
                key,
                value,
                mask=_combined(mask, past),
                dropout_rng=key_for_dropout,
                dropout_rate=self.dropout_rate,
                broadcast_dropout=self.broadcast_dropout,
                deterministic=self.dropout_rate == 0 or bool(deterministic),
                dtype=self.dtype,
                precision=self.precision,
                module=self if sow_weights else None,
                is_causal=is_causal,
                **options,
            )
        except (ShapeError, ArgumentError) as error:
            # The function does not know which layer these inputs belong to.
            raise type(error)(error.message, **{"at": describe_place(self), **error.parts}) from error
        y = self.out(y, out_sharding=out_sharding)
        if step is not None:
            self.cached_key.value, self.cached_value.value, self.cache_index.value = key, value, step + length
        return y

    def _inputs(self, q: Array, k: Array | None, v: Array | None) -> tuple[Array, Array]:
        """The inputs of keys and values, after all three shapes are checked."""
        if k is None:
            if v is not None:
                raise ArgumentError(
                    "a MultiHeadAttention was given inputs_v without inputs_k",
                    at=describe_place(self),
                    found="inputs_k=None and an array for inputs_v",
                    expected="inputs_k whenever inputs_v is passed",
                    do="to use one array for both, pass it as inputs_k and omit inputs_v",
                )
            k = q
        v = k if v is None else v
        for x, projection, name in (
            (q, self.query, "in_features"),
            (k, self.key, "in_kv_features"),
            (v, self.value, "in_kv_features"),
        ):
            check_min_rank(x, 2, "(..., length, features)", layer=self)
            features = as_tuple(getattr(self, name))
            kernel = getattr(
                getattr(projection, "kernel", None), "value", None
            )  # the projection may have been replaced
            size = weight_length(kernel, len(features) - 1, features[-1])
            check_last_axis(x, size, layer=self, size_name=name)
        return k, v

    def _check_rotation(self) -> None:
        """Raise for a rotation that does not know the position of a decoding step."""
        if getattr(self.attention_fn, "func", self.attention_fn) is dot_product_attention_with_rope:
            raise ArgumentError(
                "dot_product_attention_with_rope cannot decode: it would rotate each step as if it were the first",
                at=describe_place(self),
                found="decode=True with this attention_fn",
                expected="rotary_fn, which gets the position of each step",
                do="rotary_fn=functools.partial(plait.apply_rotary_embedding, interleaved=False)",
            )

    def init_cache(self, input_shape: Shape, dtype: DTypeLike = jnp.float32, *, per_sequence: bool = False) -> None:
        """Create an empty cache for decoding from the first position.

        Args:
            input_shape: the shape of all steps together: ``(..., length, in_features)``.
            dtype: dtype in which keys and values are stored.
            per_sequence: whether each sequence of the batch has its own position.

        Raises:
            ShapeError: the shape has fewer than two axes.

        Example:
            >>> attention = plait.MultiHeadAttention(2, 6, decode=True, rngs=plait.Rngs(0))
            >>> x = jnp.ones((5, 3, 6))
            >>> attention.init_cache(x.shape)
            >>> prompt, step = attention(x[:, :2]), attention(x[:, 2:])
            >>> prompt.shape, step.shape, int(attention.cache_index[...])
            ((5, 2, 6), (5, 1, 6), 3)
        """
        sizes = (self.num_kv_heads, self.head_dim)
        caches = empty_cache(input_shape, *sizes, dtype, per_sequence=per_sequence, layer=self)
        with around_change(self):
            self.cached_key, self.cached_value, self.cache_index = caches

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: Shape | int | None = None,
        max_length: int | None = None,
        *,
        per_sequence: bool = False,
    ) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            deterministic: whether to drop nothing.
            decode: whether to decode step by step.
            batch_size: the batch axes of a new, empty cache; together with ``max_length``.
            max_length: the number of positions of the new cache.
            per_sequence: whether each sequence has its own position in the new cache.

        Raises:
            ArgumentError: only one of ``batch_size`` and ``max_length`` is given.
            ArgumentTypeError: they are not whole numbers. Nothing is changed then.
        """
        sizes = _cache_sizes(self, batch_size, max_length)
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
        if sizes is not None:
            dtype = self.param_dtype if self.dtype is None else self.dtype
            self.init_cache((*sizes, as_tuple(self.in_features)[-1]), dtype, per_sequence=per_sequence)


def _cache_sizes(layer: Any, batch_size: Any, max_length: Any) -> tuple[int, ...] | None:
    """The batch axes and the length of a new cache; ``None`` if neither is given."""
    advice = "for example plait.view(model, decode=True, batch_size=8, max_length=128)"
    if (batch_size is None) != (max_length is None):
        raise ArgumentError(
            "a cache needs both its batch axes and its length",
            at=describe_place(layer),
            found=f"batch_size={batch_size} and max_length={max_length}",
            expected="both, or neither",
            do=advice,
        )
    if batch_size is None:
        return None
    try:
        sizes = (*as_tuple(batch_size), operator.index(max_length))
    except TypeError:
        sizes = (-1,)
    if min(sizes) < 0:
        raise ArgumentTypeError(
            "a cache cannot have these batch axes or this length",
            at=describe_place(layer),
            found=f"batch_size={batch_size!r} and max_length={max_length!r}",
            expected="one or several whole numbers for the batch axes, and one for the length",
            do=advice,
        )
    return sizes


def _combined(mask: ArrayLike | None, past: Array | None) -> ArrayLike | None:
    """The call's mask combined with the cache's."""
    if mask is None or past is None:
        return past if mask is None else mask
    mask = jnp.asarray(mask)
    ndim = max(mask.ndim, past.ndim)
    return combine_masks(*(jnp.expand_dims(x, tuple(range(ndim - x.ndim))) for x in (mask, past)), dtype=bool)
