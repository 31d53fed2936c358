"""The blocks of decoders and encoders: attention and a feed-forward network, each added to its input.

One block for all families. They differ in their norms and where these stand, in biases and gates, in what attention
sees and how it knows positions, and in a few factors.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from ..core.nodes.containers import List
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Param
from ..nn.attention import MultiHeadAttention
from ..nn.dot_product import dot_product_attention
from ..nn.linear import Linear
from ..nn.norm import LayerNorm, RMSNorm
from ..nn.stacks.stack import Stack
from ..partitioning.activations import out_sharding, with_sharding_constraint
from ..transforms.remat import remat as recomputed
from ..typing import Array, DTypeLike
from .family import ACTIVATIONS
from .rotary import Rotary

STREAM = ("batch", "length", "features")
"""The logical axes of what goes from block to block."""

Remat = bool | Callable[..., bool]
"""What the backward pass recomputes, as of ``Stack``."""

Norm = RMSNorm | LayerNorm


@dataclasses.dataclass(frozen=True)
class LayerSettings:
    """What one layer has of its own.

    Args:
        window: how many positions its attention sees, itself and those before it; in an encoder, how many on either
            side. ``None`` means all.
        rotary: its rotary embedding, if it has one.
        scale: what the products of its queries and keys are multiplied by; ``None`` means ``1 / sqrt(head_dim)``.
        is_normed: whether there is a norm before its attention, if norms stand before.
    """

    window: int | None = None
    rotary: Rotary | None = None
    scale: float | None = None
    is_normed: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a config says about blocks.

    Args:
        width, hidden: the features between blocks, and in feed-forward networks.
        heads, kv_heads, head_dim: heads of queries, those of keys and values, and the features of each.
        layers: one for each layer.
        activation: its name in configs.
        epsilon: of the norms.
        is_causal: whether each position only sees itself and those before it.
        norm: ``RMSNorm`` or ``LayerNorm``.
        norm_bias, norm_offset: whether a ``LayerNorm`` has a bias; what is added to the scale of a ``RMSNorm``.
        norms: where they stand: before attention and feed-forward network, after them, both, or after these are added
            to their input.
        qk_norm: whether queries and keys are normalised, each head alone or all together.
        parallel: whether attention and feed-forward network have the same input.
        gated: whether the network multiplies two hidden layers, one of them activated.
        qkv_bias, out_bias, mlp_bias: which layers have biases.
        soft_cap: bound of the products in attention.
        residual_scale: factor of what is added.
        layer_scale: whether each feature of it has a learned factor.
    """

    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSettings, ...]
    activation: str
    epsilon: float
    is_causal: bool = True
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    norm_offset: float = 0.0
    norms: Literal["before", "after", "both", "sum"] = "before"
    qk_norm: Literal["head", "all"] | None = None
    parallel: bool = False
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    soft_cap: float | None = None
    residual_scale: float = 1.0
    layer_scale: bool = False


class Block(Module):
    """Attention, then a feed-forward network, each added to its input.

    Shapes:
        x, result: ``(batch, length, width)``. mask: ``(batch, 1, 1 or length, length)``.
        positions: ``(batch, length)``.
    """

    def __init__(self, s: Settings, layer: LayerSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        norm = functools.partial(make_norm, s, param_dtype=param_dtype, rngs=rngs)
        before, after, after_sum = (s.norms in stand for stand in (("before", "both"), ("after", "both"), ("sum",)))
        self.parallel, self.residual_scale, self.is_causal = s.parallel, s.residual_scale, s.is_causal
        self.reach = None if s.is_causal else layer.window
        self.before_attention = norm() if before and layer.is_normed else None
        self.attention = _attention(s, layer, param_dtype=param_dtype, rngs=rngs)
        self.after_attention = norm() if after else None
        self.attention_scale = _factors(s, param_dtype)
        self.attention_sum = norm() if after_sum else None
        self.before_mlp = norm() if before else None
        self.mlp = FeedForward(s, param_dtype=param_dtype, rngs=rngs)
        self.after_mlp = norm() if after else None
        self.mlp_scale = _factors(s, param_dtype)
        self.mlp_sum = norm() if after_sum else None

    def __call__(self, x: Array, mask: Array | None = None, positions: Array | None = None) -> Array:
        if self.reach is not None:
            places = jnp.arange(x.shape[1])
            near = (jnp.abs(places[:, None] - places[None]) <= self.reach)[None, None]
            mask = near if mask is None else near & mask
        attended = self.attention(
            _apply(self.before_attention, x),
            is_causal=self.is_causal,
            mask=mask,
            input_positions=None if self.attention.rotary_fn is None else positions,
            qkv_sharding=self._sharding_of_heads(x.shape),
            out_sharding=out_sharding(*STREAM, shape=x.shape),
        )
        attended = self._scaled(_apply(self.after_attention, attended), self.attention_scale)
        y = x if self.parallel else _apply(self.attention_sum, x + attended)
        y = y + self._scaled(_apply(self.after_mlp, self.mlp(_apply(self.before_mlp, y))), self.mlp_scale)
        return with_sharding_constraint(_apply(self.mlp_sum, y + attended if self.parallel else y), STREAM)

    def _sharding_of_heads(self, shape: tuple[int, ...]) -> Any:
        """Queries have as many heads or more, so what divides the heads of keys and values divides theirs."""
        heads = (self.attention.num_kv_heads, self.attention.head_dim)
        return out_sharding("batch", "length", "heads", "head_dim", shape=(*shape[:2], *heads))

    def _scaled(self, x: Array, factors: Param | None) -> Array:
        if factors is not None:
            return x * factors[...].astype(x.dtype)[None, None]
        return x if self.residual_scale == 1 else x * jnp.asarray(self.residual_scale, x.dtype)


class FeedForward(Module):
    """``down(f(gate(x)) · up(x))``, or ``down(f(up(x)))`` without a gate.

    Shapes:
        x, result: ``(batch, length, width)``.
    """

    def __init__(self, s: Settings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        options: Any = {"use_bias": s.mlp_bias, "param_dtype": param_dtype, "rngs": rngs}
        there = {**options, "kernel_metadata": with_axes("embed", "mlp"), "bias_metadata": with_axes("mlp")}
        back = {**options, "kernel_metadata": with_axes("mlp", "embed"), "bias_metadata": with_axes("norm")}
        self.activation = s.activation
        self.gate = Linear(s.width, s.hidden, **there) if s.gated else None
        self.up = Linear(s.width, s.hidden, **there)
        self.down = Linear(s.hidden, s.width, **back)

    def __call__(self, x: Array) -> Array:
        named = out_sharding("batch", "length", "mlp", shape=(*x.shape[:2], self.up.out_features))
        f = ACTIVATIONS[self.activation]
        hidden = self.up(x, out_sharding=named)
        hidden = f(hidden) if self.gate is None else f(self.gate(x, out_sharding=named)) * hidden
        return self.down(hidden, out_sharding=out_sharding(*STREAM, shape=x.shape))


@dataclasses.dataclass(frozen=True)
class Attend:
    """An ``attention_fn`` with a scale and a soft cap."""

    scale: float | None
    soft_cap: float | None

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        return dot_product_attention(query, key, value, scale=self.scale, soft_cap=self.soft_cap, **options)


def _attention(s: Settings, layer: LayerSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> MultiHeadAttention:
    is_plain = layer.scale is None and s.soft_cap is None
    attention = MultiHeadAttention(
        s.heads,
        s.width,
        s.heads * s.head_dim,
        num_kv_heads=s.kv_heads,
        use_bias=s.qkv_bias or s.out_bias,
        window=layer.window if s.is_causal else None,
        rotary_fn=layer.rotary,
        attention_fn=dot_product_attention if is_plain else Attend(layer.scale, s.soft_cap),
        decode=False,
        param_dtype=param_dtype,
        rngs=rngs,
        kernel_metadata=with_axes("embed", "heads", "head_dim"),
        kv_kernel_metadata=with_axes("embed", "kv_heads", "head_dim"),
        out_kernel_metadata=with_axes("heads", "head_dim", "embed"),
        bias_metadata=with_axes("heads", "head_dim"),
        kv_bias_metadata=with_axes("kv_heads", "head_dim"),
        out_bias_metadata=with_axes("norm"),
    )
    without = [] if s.qkv_bias else [attention.query, attention.key, attention.value]
    for part in without if s.out_bias else [*without, attention.out]:
        part.use_bias, part.bias = False, None
    if s.qk_norm is not None:
        axes = -1 if s.qk_norm == "head" else (-2, -1)
        for name, heads in (("query_ln", s.heads), ("key_ln", s.kv_heads)):
            features = s.head_dim * (1 if s.qk_norm == "head" else heads)
            norm = make_norm(s, features, param_dtype=param_dtype, rngs=rngs, reduction_axes=axes, feature_axes=axes)
            setattr(attention, name, norm)
    return attention


def make_norm(s: Settings, features: int | None = None, **options: Any) -> Norm:
    """A norm as the settings say; of ``width`` features unless others are given."""
    features, named = s.width if features is None else features, with_axes("norm")
    options |= {"epsilon": s.epsilon, "scale_metadata": named}
    if s.norm == "rms":
        return RMSNorm(features, scale_offset=s.norm_offset, **options)
    return LayerNorm(features, use_bias=s.norm_bias, use_fast_variance=False, bias_metadata=named, **options)


def _apply(norm: Norm | None, x: Array) -> Array:
    return x if norm is None else norm(x)


def _factors(s: Settings, param_dtype: DTypeLike) -> Param | None:
    return Param(jnp.ones((s.width,), param_dtype), **with_axes("norm")) if s.layer_scale else None


def with_axes(*axes: str | None) -> dict[str, Any]:
    """The metadata of a variable with these logical axes."""
    return {"out_sharding": axes}


def make_blocks(s: Settings, *, param_dtype: DTypeLike, as_list: bool, remat: Remat, rngs: Rngs) -> Stack | List[Any]:
    """A ``Stack`` of blocks, or a ``List`` if that is asked for, or if the layers do not repeat."""
    makers = [functools.partial(Block, s, layer, param_dtype=param_dtype) for layer in s.layers]
    count = len(makers)
    period = next(n for n in range(1, count + 1) if all(x == s.layers[i % n] for i, x in enumerate(s.layers)))
    if as_list or (period > 1 and 2 * period > count):
        return List([make(rngs=rngs) for make in makers])
    return Stack(makers[:period], count, rngs=rngs, axis="layers", remat=remat)


def run_blocks(blocks: Stack | List[Any], remat: Remat, x: Array, *inputs: Any) -> Array:
    """``x`` through all blocks, each of which gets the other inputs too."""
    if isinstance(blocks, Stack):
        return blocks(x, *inputs)
    for block in blocks:
        call = Block.__call__ if remat is False else recomputed(Block.__call__, policy=None if remat is True else remat)
        x = call(block, x, *inputs)
    return x
