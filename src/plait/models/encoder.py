"""An encoder: an embedded text or image, and blocks in which all positions see all.

One file for all families (``encoder_families.py``). They differ in how they embed, in their blocks, and in what they
pool.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Param
from ..errors import ArgumentError, ShapeError
from ..nn.conv import Conv
from ..nn.embedding import Embed
from ..nn.linear import Linear
from ..partitioning.activations import out_sharding, with_sharding_constraint
from ..typing import Array, DTypeLike
from .blocks import STREAM, Remat, Settings, make_blocks, make_norm, run_blocks, with_axes
from .family import ACTIVATIONS, PublishedModel


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """How images are embedded.

    Args:
        image, patch: height and width.
        channels: of an image.
        registers: how many tokens stand between the class and the patches; ``None`` for families without them.
        resize: how positions are interpolated for images of another size; ``None`` means that there are no others.
        has_mask: whether a token can stand for a patch that is masked.
    """

    image: tuple[int, int]
    patch: tuple[int, int]
    channels: int
    registers: int | None = None
    resize: Literal["cubic", "antialiased"] | None = None
    has_mask: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings(Settings):
    """What a config says about an encoder: of a text, or of an image.

    Args:
        image: how images are embedded; ``None`` for texts.
        vocabulary: how many tokens there are.
        positions: how many learned positions there are; ``None`` means none.
        segments: how many kinds of segments there are; ``None`` means none.
        padding: the token of padding, if positions count the other tokens, and from the number after it.
        pooled: what is pooled: the first position, or what a layer and an activation make of it.
        pooled_width: the features of that layer; ``None`` means ``width``.
    """

    image: ImageSettings | None = None
    vocabulary: int = 0
    positions: int | None = None
    segments: int | None = None
    padding: int | None = None
    pooled: str | None = None
    pooled_width: int | None = None


class Encoder(PublishedModel):
    """The last hidden state of a text or an image: ``norm(blocks(embed(inputs)))``.

    Shapes:
        inputs: tokens ``(batch, length)``, integers; or images ``(batch, height, width, channels)``.
        result: ``(batch, length, width)``, for images the class, registers and patches; pooled, ``(batch, width)``.

    Variables:
        embed: ``EmbedText`` or ``EmbedImage``.
        blocks: a ``Stack`` of ``Block``, or a ``List`` of them.
        norm: ``LayerNorm``; ``None`` if the norms stand after attention and feed-forward network.
        pooler: ``Linear``; ``None`` for families without one, and for files without its weights.

    Args:
        settings: those of the config.
        param_dtype: dtype of the parameters.
        as_list: whether blocks are a list.
        remat: as of ``Stack``: what the backward pass recomputes.
        rngs: draws the parameters.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        *,
        param_dtype: DTypeLike = jnp.float32,
        as_list: bool = False,
        remat: Remat = False,
        rngs: Rngs,
    ) -> None:
        s = self.settings = settings
        self.remat = remat
        options: Any = {"param_dtype": param_dtype, "rngs": rngs}
        self.embed = EmbedText(s, **options) if s.image is None else EmbedImage(s, s.image, **options)
        self.blocks = make_blocks(s, as_list=as_list, remat=remat, **options)
        self.norm = make_norm(s, **options) if s.norms == "before" else None
        self.pooler: Linear | None = None
        if s.pooled in ACTIVATIONS:
            width = s.pooled_width or s.width
            self.pooler = Linear(s.width, width, **options, kernel_metadata=with_axes("embed", None))

    def __call__(
        self, inputs: Array, *, mask: Array | None = None, segments: Array | None = None, pooled: bool = False
    ) -> Array:
        """The last hidden state.

        Args:
            inputs: tokens or images.
            mask: ``(batch, length)``: which tokens others may attend to; of an image, ``(batch, patches)``: which
                patches are seen, in place of the token that stands for those that are not.
            segments: ``(batch, length)``: the kind of segment of each token; ``None`` means 0.
            pooled: whether to return one vector for each text or image.

        Raises:
            ArgumentError: the model has no segments, no masked patches, or nothing pooled.
            ShapeError: the input has too many positions or another size.
        """
        s = self.settings
        if pooled and (s.pooled is None or (s.pooled in ACTIVATIONS and self.pooler is None)):
            raise _lacks(self, "pooled output", "pooled=True", "pool its hidden states: model(inputs).mean(axis=1)")
        if isinstance(self.embed, EmbedText):
            x = self.embed(inputs, segments)
            mask = None if mask is None else jnp.asarray(mask, bool)[:, None, None, :]
        else:
            if segments is not None:
                raise _lacks(self, "segments", "an array for segments", "leave segments out")
            x, mask = self.embed(inputs, mask), None
        x = run_blocks(self.blocks, self.remat, with_sharding_constraint(x, STREAM), mask)
        if self.norm is not None:
            x = self.norm(x)
        if not pooled:
            return x
        first = x[:, 0]
        return first if self.pooler is None else ACTIVATIONS[s.pooled or ""](self.pooler(first))


class EmbedText(Module):
    """The embeddings of tokens, positions and segments, summed and normalised.

    Shapes:
        tokens, segments: ``(batch, length)``. result: ``(batch, length, width)``.
    """

    def __init__(self, s: EncoderSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        self.padding = s.padding

        def table(number: int, name: str) -> Embed:
            named = with_axes(name, "embed")
            return Embed(number, s.width, param_dtype=param_dtype, rngs=rngs, embedding_metadata=named)

        self.tokens = table(s.vocabulary, "vocab")
        self.positions = table(s.positions, "length") if s.positions else None
        self.segments = table(s.segments, "norm") if s.segments else None
        self.norm = make_norm(s, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, tokens: Array, segments: Array | None) -> Array:
        if segments is not None:
            if self.segments is None:
                raise _lacks(self, "segments", "an array for segments", "leave segments out")
            _check_shape(self, "segments", segments, "(batch, length)", tokens.shape)
        named = out_sharding(*STREAM, shape=(*tokens.shape, self.tokens.features))
        x = self.tokens(tokens, out_sharding=named)
        if self.positions is not None:
            x = x + self.positions(self._positions(tokens), out_sharding=named)
        if self.segments is not None:
            x = x + self.segments(jnp.zeros_like(tokens) if segments is None else segments, out_sharding=named)
        return self.norm(x)

    def _positions(self, tokens: Array) -> Array:
        assert self.positions is not None
        first, length = self.padding, tokens.shape[-1]
        limit = self.positions.num_embeddings - (0 if first is None else first + 1)
        if isinstance(length, int) and length > limit:  # it may be symbolic
            raise ShapeError(
                "the model does not have as many positions",
                at=describe_place(self),
                found=f"{length} tokens",
                expected=f"at most {limit}",
                do="pass fewer tokens at once",
            )
        if first is None:
            return jnp.broadcast_to(jnp.arange(length), tokens.shape)
        are_tokens = (tokens != first).astype(jnp.int32)
        return jnp.cumsum(are_tokens, axis=-1) * are_tokens + first


class EmbedImage(Module):
    """The embeddings of a class, of registers, and of the patches of an image.

    Shapes:
        images: ``(batch, height, width, channels)``. mask: ``(batch, patches)``.
        result: ``(batch, 1 + registers + patches, features)``.
    """

    def __init__(self, s: EncoderSettings, of: ImageSettings, *, param_dtype: DTypeLike, rngs: Rngs) -> None:
        self.settings = of
        self.patches = Conv(
            of.channels, s.width, of.patch, strides=of.patch, padding="VALID", param_dtype=param_dtype, rngs=rngs,
            kernel_metadata=with_axes(None, None, None, "embed"),
        )  # fmt: skip
        named = with_axes(None, None, "embed")
        self.grid = (of.image[0] // of.patch[0], of.image[1] // of.patch[1])
        positions = 1 + math.prod(self.grid)

        def tokens(number: int) -> Param:
            return Param(jnp.zeros((1, number, s.width), param_dtype), **named)

        self.class_token = tokens(1)
        self.mask_token = (
            Param(jnp.zeros((1, s.width), param_dtype), **with_axes(None, "embed")) if of.has_mask else None
        )
        self.registers = None if of.registers is None else tokens(of.registers)
        self.positions = tokens(positions)

    def __call__(self, images: Array, mask: Array | None) -> Array:
        grid = self._grid_of(images)
        named = out_sharding("batch", None, None, "features", shape=(len(images), *grid, self.patches.out_features))
        x = self.patches(images, out_sharding=named)
        x = with_sharding_constraint(jnp.reshape(x, (x.shape[0], -1, x.shape[-1])), STREAM)
        if mask is not None:
            if self.mask_token is None:
                raise _lacks(self, "token for masked patches", "an array for mask", "leave mask out")
            _check_shape(self, "mask", mask, "(batch, patches)", x.shape[:2])
            x = jnp.where(jnp.asarray(mask, bool)[..., None], x, self.mask_token[...].astype(x.dtype)[None])

        def of_each(token: Array) -> Array:
            token = with_sharding_constraint(token.astype(x.dtype), (None, None, "features"))
            return with_sharding_constraint(jnp.broadcast_to(token, (len(images), *token.shape[1:])), STREAM)

        x = jnp.concatenate([of_each(self.class_token[...]), x], axis=1) + of_each(self._positions(grid))
        if self.registers is not None:
            x = jnp.concatenate([x[:, :1], of_each(self.registers[...]), x[:, 1:]], axis=1)
        return x

    def _grid_of(self, images: Array) -> tuple[int, int]:
        """How many patches high and wide the images are."""
        of, size = self.settings, tuple(images.shape[1:3])
        whole = images.ndim == 4 and all(n % patch == 0 and n > 0 for n, patch in zip(size, of.patch, strict=True))
        if not whole or images.shape[3] != of.channels or (size != of.image and not of.resize):
            high, wide = ("a multiple of {}",) * 2 if of.resize else ("{}",) * 2
            sizes = of.patch if of.resize else of.image
            raise ShapeError(
                "the images have another size than those of the model",
                at=describe_place(self),
                found=f"shape {images.shape}",
                expected=f"(batch, {high.format(sizes[0])}, {wide.format(sizes[1])}, {of.channels})",
                do="resize them with jax.image.resize; channels come last",
            )
        return size[0] // of.patch[0], size[1] // of.patch[1]

    def _positions(self, grid: tuple[int, int]) -> Array:
        table = self.positions[...]
        if grid == self.grid:
            return table
        resized = jnp.reshape(table[:, 1:], (*self.grid, -1))
        if self.settings.resize == "antialiased":
            resized = jax.image.resize(resized, (*grid, table.shape[-1]), "cubic")
        else:
            there = [jnp.asarray(_cubic(old, new), table.dtype) for old, new in zip(self.grid, grid, strict=True)]
            resized = jnp.einsum("hi,wj,ijf->hwf", *there, resized)
        return jnp.concatenate([table[:, :1], jnp.reshape(resized, (1, -1, table.shape[-1]))], axis=1)


def _cubic(old: int, new: int) -> np.ndarray:
    """The weights with which cubic convolution interpolates ``old`` samples at ``new`` places; beyond, edges repeat.

    Reference: Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.75.
    """
    places = (np.arange(new) + 0.5) * old / new - 0.5
    taps = np.floor(places)[:, None] + np.arange(-1, 3)
    far = np.abs(places[:, None] - taps)
    a = -0.75
    near_weights = (a + 2) * far**3 - (a + 3) * far**2 + 1
    far_weights = a * far**3 - 5 * a * far**2 + 8 * a * far - 4 * a
    weights = np.zeros((new, old))
    rows = np.broadcast_to(np.arange(new)[:, None], taps.shape)
    np.add.at(weights, (rows, np.clip(taps, 0, old - 1).astype(int)), np.where(far <= 1, near_weights, far_weights))
    return weights


def _check_shape(node: Module, name: str, value: Any, axes: str, shape: tuple[int, ...]) -> None:
    if jnp.shape(value) != shape:
        raise ShapeError(
            f"{name} has another shape than the input",
            at=describe_place(node),
            found=f"{name} of shape {jnp.shape(value)}",
            expected=f"{axes}: {shape}",
            do=f"pass {name} with one entry for each",
        )


def _lacks(node: Module, what: str, found: str, do: str) -> ArgumentError:
    return ArgumentError(
        f"the model has no {what}", at=describe_place(node), found=found, expected=f"a model with {what}", do=do
    )
