"""A decoder: embedded tokens, blocks of attention and a feed-forward network, and logits over the next token.

One file for all families (``decoder_families.py``). They differ in their norms and where these stand, in biases and
gates, in what attention sees and how it knows positions, and in a few constant factors.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax.numpy as jnp

from ..core.nodes.module import Module, around_change
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError, ShapeError
from ..nn.attention import MultiHeadAttention
from ..nn.dot_product import dot_product_attention
from ..nn.embedding import Embed
from ..nn.kv_cache import step_positions
from ..nn.linear import Linear
from ..nn.norm import LayerNorm, RMSNorm
from ..partitioning.activations import out_sharding, with_sharding_constraint
from ..typing import Array, DTypeLike
from .blocks import STREAM, Remat, make_blocks, run_blocks, with_axes
from .family import ACTIVATIONS, PublishedModel
from .rotary import Rotary


@dataclasses.dataclass(frozen=True)
class LayerSettings:
    """What one layer has of its own.

    Args:
        window: how many positions its attention sees; ``None`` means all before.
        rotary: its rotary embedding, if it has one.
        scale: what the products of its queries and keys are multiplied by; ``None`` means ``1 / sqrt(head_dim)``.
    """

    window: int | None = None
    rotary: Rotary | None = None
    scale: float | None = None


@dataclasses.dataclass(frozen=True)
class DecoderSettings:
    """What a config says about a decoder.

    Args:
        vocabulary, width, hidden: how many tokens there are; the features between blocks, and in feed-forward networks.
        heads, kv_heads, head_dim: heads of queries, those of keys and values, and the features of each.
        layers: one for each layer.
        activation: its name in configs.
        epsilon: of the norms.
        norm: ``RMSNorm``, or ``LayerNorm`` with a bias.
        norm_offset: added to the scale of a norm.
        norms: where they stand: before attention and feed-forward network, after them, or both.
        qk_norm: whether queries and keys are normalised, each head alone or all together.
        parallel: whether attention and feed-forward network have the same input.
        gated: whether the network multiplies two hidden layers, one of them activated.
        qkv_bias, out_bias, mlp_bias: which layers have biases.
        soft_cap, logit_soft_cap: bounds of the products in attention, and of the logits.
        embedding_scale, residual_scale: factors of the embeddings and of what is added to them.
        logit_divisor: what the logits are divided by.
        positions: how many learned positions there are; ``None`` means none.
        tied: whether the embeddings also make the logits.
    """

    vocabulary: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSettings, ...]
    activation: str
    epsilon: float
    tied: bool
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    norms: Literal["before", "after", "both"] = "before"
    qk_norm: Literal["head", "all"] | None = None
    parallel: bool = False
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    soft_cap: float | None = None
    logit_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    positions: int | None = None


class Decoder(PublishedModel):
    """Logits over the next token: ``head(norm(blocks(embed(tokens))))``.

    Shapes:
        tokens: ``(batch, length)``, integers. result: ``(batch, length, vocabulary)``.

    Variables:
        embed: ``Embed``, ``(vocabulary, width)``.
        positions: ``Positions``; ``None`` without learned positions.
        blocks: a ``Stack`` of ``DecoderBlock``, or a ``List`` of them.
        norm: ``RMSNorm`` or ``LayerNorm``.
        head: ``Linear``, ``(width, vocabulary)``; ``None`` if the embeddings are used.

    Attributes:
        max_length: how many positions the model has for a text that it generates; ``None`` sets no limit.

    Args:
        settings: those of the config.
        param_dtype: dtype of the parameters.
        as_list: whether blocks are a list.
        remat: as of ``Stack``: what the backward pass recomputes.
        rngs: draws the parameters.
    """

    def __init__(
        self,
        settings: DecoderSettings,
        *,
        param_dtype: DTypeLike = jnp.float32,
        as_list: bool = False,
        remat: Remat = False,
        rngs: Rngs,
    ) -> None:
        s = self.settings = settings
        self.remat = remat
        options: Any = {"param_dtype": param_dtype, "rngs": rngs}
        limits = [layer.rotary.limit for layer in s.layers if layer.rotary is not None]
        self.max_length: int | None = min([n for n in [s.positions, *limits] if n is not None], default=None)
        self.embed = Embed(s.vocabulary, s.width, **options, embedding_metadata=with_axes("vocab", "embed"))
        self.positions = None if s.positions is None else Positions(s.positions, s.width, **options)
        makers = [functools.partial(DecoderBlock, s, layer, param_dtype=param_dtype) for layer in s.layers]
        self.blocks = make_blocks(makers, s.layers, as_list=as_list, remat=remat, rngs=rngs)
        self.norm = _norm(s, **options)
        self.head: Linear | None = None
        if not s.tied:
            named = with_axes("embed", "vocab")
            self.head = Linear(s.width, s.vocabulary, use_bias=False, **options, kernel_metadata=named)

    def __call__(self, tokens: Array, *, mask: Array | None = None, positions: Array | None = None) -> Array:
        """The logits after each token.

        Args:
            tokens: the tokens.
            mask: which tokens others may attend to, ``(batch, length)``; or which each query may attend to, as for
                ``MultiHeadAttention``. While decoding, its length is that of the cache.
            positions: of the tokens, ``(batch, length)``; ``None`` counts from 0, and while decoding from the cache's.
        """
        s = self.settings
        x = self.embed(tokens, out_sharding=out_sharding(*STREAM))
        if s.embedding_scale != 1:
            x = x * jnp.asarray(s.embedding_scale, x.dtype)
        if self.positions is not None:
            x = x + self.positions(tokens, positions)
        x = with_sharding_constraint(x, STREAM)
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None, :]
        x = self.norm(run_blocks(self.blocks, self.remat, x, mask, positions))
        axes = out_sharding("batch", "length", "vocab")
        logits = self.embed.attend(x, axes) if self.head is None else self.head(x, out_sharding=axes)
        if s.logit_divisor != 1:
            logits = logits / s.logit_divisor
        if s.logit_soft_cap is not None:
            logits = s.logit_soft_cap * jnp.tanh(logits / s.logit_soft_cap)
        return logits

    def set_view(self, max_length: int | None = None, long_context: bool | None = None) -> None:
        """Check that a decoding view is no longer than the model allows, or prepare one for longer texts.

        Args:
            max_length: the number of positions of the new caches.
            long_context: whether to rotate all texts as those longer than ``max_length`` of the model, whose rotary
                embedding is another for these (``longrope``): what the model computes if the prompt is so long.

        Raises:
            ArgumentError: the model has fewer positions, or no rotary embedding for longer texts.
        """
        if long_context:
            self._lengthen()
        if max_length is not None and self.max_length is not None and max_length > self.max_length:
            raise ArgumentError(
                "the model does not have as many positions",
                found=f"max_length={max_length}",
                expected=f"at most {self.max_length}",
                do=f"plait.generate(model, prompt, n, max_length={self.max_length}), or plait.view with that length",
            )

    def _lengthen(self) -> None:
        layers = [node for _, node in iter_graph_nodes(self.blocks) if isinstance(node, MultiHeadAttention)]
        rotaries = [layer.rotary_fn for layer in layers if isinstance(layer.rotary_fn, Rotary)]
        if not all(rotary.beyond is not None for rotary in rotaries) or not rotaries:
            raise ArgumentError(
                "the model has one rotary embedding for texts of all lengths",
                found="long_context=True",
                expected="a model whose config says rope_type longrope",
                do="leave long_context out",
            )
        for layer in layers:
            if isinstance(layer.rotary_fn, Rotary):
                layer.rotary_fn = layer.rotary_fn.for_long_texts()
        self.max_length = None


class DecoderBlock(Module):
    """Attention, then a feed-forward network, each added to its input.

    Shapes:
        x, result: ``(batch, length, width)``.
    """

    def __init__(self, s: DecoderSettings, layer: LayerSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        norm = functools.partial(_norm, s, param_dtype=param_dtype, rngs=rngs)
        self.parallel, self.residual_scale = s.parallel, s.residual_scale
        self.before_attention = None if s.norms == "after" else norm()
        self.attention = _attention(s, layer, param_dtype=param_dtype, rngs=rngs)
        self.after_attention = None if s.norms == "before" else norm()
        self.before_mlp = None if s.norms == "after" else norm()
        self.mlp = FeedForward(s, param_dtype=param_dtype, rngs=rngs)
        self.after_mlp = None if s.norms == "before" else norm()

    def __call__(self, x: Array, mask: Array | None = None, positions: Array | None = None) -> Array:
        attended = self.attention(
            _apply(self.before_attention, x),
            is_causal=True,
            mask=mask,
            input_positions=None if self.attention.rotary_fn is None else positions,
            qkv_sharding=out_sharding("batch", "length", "heads", "head_dim"),
            out_sharding=out_sharding(*STREAM),
        )
        attended = self._scaled(_apply(self.after_attention, attended))
        y = x if self.parallel else x + attended
        y = y + self._scaled(_apply(self.after_mlp, self.mlp(_apply(self.before_mlp, y))))
        return with_sharding_constraint(y + attended if self.parallel else y, STREAM)

    def _scaled(self, x: Array) -> Array:
        return x if self.residual_scale == 1 else x * jnp.asarray(self.residual_scale, x.dtype)


class FeedForward(Module):
    """``down(f(gate(x)) · up(x))``, or ``down(f(up(x)))`` without a gate.

    Shapes:
        x, result: ``(batch, length, width)``.
    """

    def __init__(self, s: DecoderSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        options: Any = {"use_bias": s.mlp_bias, "param_dtype": param_dtype, "rngs": rngs}
        there = {**options, "kernel_metadata": with_axes("embed", "mlp"), "bias_metadata": with_axes("mlp")}
        self.activation = s.activation
        self.gate = Linear(s.width, s.hidden, **there) if s.gated else None
        self.up = Linear(s.width, s.hidden, **there)
        self.down = Linear(
            s.hidden, s.width, **options, kernel_metadata=with_axes("mlp", "embed"), bias_metadata=with_axes("norm")
        )

    def __call__(self, x: Array) -> Array:
        named, f = out_sharding("batch", "length", "mlp"), ACTIVATIONS[self.activation]
        hidden = self.up(x, out_sharding=named)
        hidden = f(hidden) if self.gate is None else f(self.gate(x, out_sharding=named)) * hidden
        return self.down(hidden, out_sharding=out_sharding(*STREAM))


class Positions(Module):
    """A learned vector for each position; while decoding, the first position is that of the cache.

    Shapes:
        tokens: ``(batch, length)``. result: ``(batch, length, width)``.
    """

    def __init__(self, number: int, width: int, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        named = with_axes("length", "embed")
        self.table = Embed(number, width, param_dtype=param_dtype, rngs=rngs, embedding_metadata=named)
        self.decode = False
        self.cache_index: Any = None

    def __call__(self, tokens: Array, positions: Array | None) -> Array:
        length = tokens.shape[-1]
        index = self.cache_index.value if self.decode else None
        if index is None and positions is None and isinstance(length, int) and length > self.table.num_embeddings:
            raise ShapeError(
                "the model does not have as many positions",
                found=f"{length} tokens",
                expected=f"at most {self.table.num_embeddings}",
                do="pass fewer tokens at once",
            )
        if positions is None:
            positions = step_positions(tokens[..., None, None], index)
        if index is not None:
            self.cache_index.value = index + length
        return self.table(jnp.broadcast_to(positions, tokens.shape))

    def set_view(self, decode: bool | None = None, batch_size: Any = None, *, per_sequence: bool = False) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            decode: whether to decode step by step.
            batch_size: the batch axes of a new position.
            per_sequence: whether each sequence has its own position.
        """
        if decode is not None:
            self.decode = decode
        if batch_size is not None:
            axes = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
            with around_change(self):
                self.cache_index = Cache(jnp.zeros(axes if per_sequence else (), jnp.int32))


@dataclasses.dataclass(frozen=True)
class Attend:
    """An ``attention_fn`` with a scale and a soft cap."""

    scale: float | None
    soft_cap: float | None

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        return dot_product_attention(query, key, value, scale=self.scale, soft_cap=self.soft_cap, **options)


def _attention(s: DecoderSettings, layer: LayerSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> MultiHeadAttention:
    is_plain = layer.scale is None and s.soft_cap is None
    attention = MultiHeadAttention(
        s.heads,
        s.width,
        s.heads * s.head_dim,
        num_kv_heads=s.kv_heads,
        use_bias=s.qkv_bias,
        window=layer.window,
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
    if s.qkv_bias and not s.out_bias:
        attention.out.use_bias, attention.out.bias = False, None
    if s.qk_norm is not None:
        axes = -1 if s.qk_norm == "head" else (-2, -1)
        for name, heads in (("query_ln", s.heads), ("key_ln", s.kv_heads)):
            features = s.head_dim * (1 if s.qk_norm == "head" else heads)
            norm = _norm(s, features, param_dtype=param_dtype, rngs=rngs, reduction_axes=axes, feature_axes=axes)
            setattr(attention, name, norm)
    return attention


def _norm(s: DecoderSettings, features: int | None = None, **options: Any) -> RMSNorm | LayerNorm:
    features, named = s.width if features is None else features, with_axes("norm")
    if s.norm == "rms":
        return RMSNorm(features, epsilon=s.epsilon, scale_offset=s.norm_offset, scale_metadata=named, **options)
    options |= {"scale_metadata": named, "bias_metadata": named}
    return LayerNorm(features, epsilon=s.epsilon, use_fast_variance=False, **options)


def _apply(norm: RMSNorm | LayerNorm | None, x: Array) -> Array:
    return x if norm is None else norm(x)
