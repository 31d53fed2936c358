"""A decoder: embedded tokens, blocks, and logits over the next token.

One file for all families (``decoder_families.py``). They differ in their blocks, in learned positions, and in a few
constant factors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ..core.nodes.module import Module, around_change
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError, ShapeError
from ..nn.attention import MultiHeadAttention
from ..nn.embedding import Embed
from ..nn.kv_cache import step_positions
from ..nn.linear import Linear
from ..partitioning.activations import out_sharding, with_sharding_constraint
from ..typing import Array, DTypeLike
from .blocks import STREAM, Remat, Settings, make_blocks, make_norm, run_blocks, with_axes
from .family import PublishedModel
from .rotary import Rotary


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSettings(Settings):
    """What a config says about a decoder.

    Args:
        vocabulary: how many tokens there are.
        tied: whether the embeddings also make the logits.
        positions: how many learned positions there are; ``None`` means none.
        embedding_scale: factor of the embeddings.
        logit_divisor: what the logits are divided by.
        logit_soft_cap: their bound.
    """

    vocabulary: int
    tied: bool
    positions: int | None = None
    embedding_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_soft_cap: float | None = None


class Decoder(PublishedModel):
    """Logits over the next token: ``head(norm(blocks(embed(tokens))))``.

    Shapes:
        tokens: ``(batch, length)``, integers. result: ``(batch, length, vocabulary)``.

    Variables:
        embed: ``Embed``, ``(vocabulary, width)``.
        positions: ``Positions``; ``None`` without learned positions.
        blocks: a ``Stack`` of ``Block``, or a ``List`` of them.
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
        self.blocks = make_blocks(s, as_list=as_list, remat=remat, **options)
        self.norm = make_norm(s, **options)
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
        x = self.embed(tokens, out_sharding=out_sharding(*STREAM, shape=(*tokens.shape, s.width)))
        if s.embedding_scale != 1:
            x = x * jnp.asarray(s.embedding_scale, x.dtype)
        if self.positions is not None:
            x = x + self.positions(tokens, positions)
        x = with_sharding_constraint(x, STREAM)
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None, :]
        x = self.norm(run_blocks(self.blocks, self.remat, x, mask, positions))
        axes = out_sharding("batch", "length", "vocab", shape=(*tokens.shape, s.vocabulary))
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
        named = out_sharding(*STREAM, shape=(*tokens.shape, self.table.features))
        return self.table(jnp.broadcast_to(positions, tokens.shape), out_sharding=named)

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
