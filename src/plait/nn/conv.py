"""Convolutions over any number of spatial axes, channels last.

A layer takes any number of batch axes, including none: it reshapes them to one for JAX, and back afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Weight
from ..errors import ArgumentError, ShapeError
from ..typing import Array, DTypeLike, Initializer, PrecisionLike
from ..util.static_values import HashableMapping
from ..util.words import describe_type
from .arithmetic import arithmetic
from .checks import check_last_axis, check_min_rank, check_rngs, weight_length
from .initializers import default_bias_init, default_kernel_init
from .linear import as_tuple, product_options, promoted, without_arrays
from .promotion import add_bias, promote_dtype
from .stored_arguments import new_weight, store_arguments

Pairs = tuple[tuple[int, int], ...]
Padding = str | int | Sequence[int | tuple[int, int]]

_SIZES = ("strides", "padding", "input_dilation", "kernel_dilation")  # arguments that may be arrays of NumPy

# Modes of jnp.pad; the convolution itself is then "VALID".
_BORDERS = {"CIRCULAR": "wrap", "REFLECT": "reflect", "CAUSAL": "constant"}
_NAMES = ("SAME", "SAME_LOWER", "VALID", "CIRCULAR", "REFLECT")


class _Convolution(Module):
    """Base of the convolutions, which differ in the product."""

    in_features: int
    out_features: int
    kernel_size: tuple[int, ...]
    strides: int | Sequence[int] | None
    padding: Padding
    kernel_dilation: int | Sequence[int] | None
    use_bias: bool
    mask: Array | None
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    precision: PrecisionLike
    promote_dtype: Callable[..., Any]
    preferred_element_type: DTypeLike | None

    def _store(self, arguments: Mapping[str, Any], channels: tuple[int, int]) -> None:
        """Store the arguments of a constructor, its ``locals()``, and make the weights.

        Args:
            arguments: by the names of the parameters.
            channels: the last two axes of the kernel.
        """
        sizes = {name: without_arrays(arguments[name]) for name in _SIZES if name in arguments}
        store_arguments(self, {**arguments, **sizes, "kernel_size": as_tuple(arguments["kernel_size"])})
        self.kernel_shape = (*self.kernel_size, *channels)
        check_rngs(arguments["rngs"], layer=self)
        self.kernel = new_weight("kernel", self.kernel_shape, arguments)
        self.bias: Weight = new_weight("bias", (self.out_features,), arguments) if self.use_bias else None


class Conv(_Convolution):
    """Convolution with a learned kernel: each output position depends on a window of the input.

    Shapes:
        inputs: ``(..., *spatial, in_features)``. y: ``(..., *spatial_out, out_features)``; any number of batch axes.

    Variables:
        kernel: ``Param``, ``(*kernel_size, in_features // feature_group_count, out_features)``, ``param_dtype``.
        bias: ``Param``, ``(out_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        in_features: channels of the input.
        out_features: channels of the output.
        kernel_size: window length per spatial axis; ``3`` means ``(3,)``, and images need ``(3, 3)``.
        strides: steps between windows, one number for all axes or one each; ``None`` means 1.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, ``"CIRCULAR"`` (wraps around), ``"REFLECT"``, ``"CAUSAL"``
            (one spatial axis, pads the beginning only), in upper or lower case; a number for all sides, or per axis a
            number or a pair (before, after).
        input_dilation: spacing of the input's elements; ``None`` means 1.
        kernel_dilation: spacing of the window's elements; ``None`` means 1.
        feature_group_count: number of groups of channels that are convolved separately.
        use_bias: whether to add a bias.
        mask: multiplies the kernel, in its shape; ``None`` for none.
        dtype: dtype to compute in; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        precision: of the products; see ``jax.lax.Precision``.
        kernel_init: initializer of ``kernel``.
        bias_init: initializer of ``bias``.
        conv_general_dilated: replaces ``jax.lax.conv_general_dilated``; the input may then have any axes.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        preferred_element_type: dtype in which products are accumulated and returned.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of ``kernel``.
        bias_metadata: metadata of ``bias``.

    Raises:
        ShapeError: the input does not have ``in_features`` channels or all spatial axes, or the mask does not have the
            kernel's shape.
        ArgumentError: the groups do not divide the channels, or the padding has an unsupported form.

    Example:
        >>> layer = plait.Conv(3, 8, (5, 5), padding="VALID", rngs=plait.Rngs(0))
        >>> layer.kernel.shape, layer(jnp.ones((2, 28, 28, 3))).shape
        ((5, 5, 3, 8), (2, 24, 24, 8))
    """

    input_dilation: int | Sequence[int] | None
    feature_group_count: int
    conv_general_dilated: Callable[..., Array]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = 1,
        *,
        padding: Padding = "SAME",
        input_dilation: int | Sequence[int] | None = 1,
        kernel_dilation: int | Sequence[int] | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        conv_general_dilated: Callable[..., Array] = lax.conv_general_dilated,
        promote_dtype: Callable[..., Any] = promote_dtype,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        _check_groups(in_features, out_features, feature_group_count)
        self._store(locals(), (in_features // feature_group_count, out_features))

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        inputs, kernel, bias = promoted(self, inputs, masked_kernel(self))
        if self.conv_general_dilated is lax.conv_general_dilated:
            _check_input(inputs, kernel, self)
        return convolution(inputs, kernel, bias, **self.window(), **product_options(self, out_sharding))

    def window(self) -> dict[str, Any]:
        """How the window moves over the input: the settings of ``convolution``."""
        n_spatial = len(self.kernel_size)
        dilation = per_axis(self.kernel_dilation, self, "kernel_dilation")
        padding, border = resolve_padding(self.padding, self, (*_NAMES, "CAUSAL") if n_spatial == 1 else _NAMES), None
        if isinstance(padding, str) and padding in _BORDERS:
            # A ``VALID`` convolution at stride 1 then returns the original length.
            extents = [(size - 1) * spacing for size, spacing in zip(self.kernel_size, dilation, strict=True)]
            befores = extents if padding == "CAUSAL" else [extent // 2 for extent in extents]
            widths = [(before, extent - before) for before, extent in zip(befores, extents, strict=True)]
            padding, border = "VALID", (((0, 0), *widths, (0, 0)), _BORDERS[padding])
        return {
            "product": self.conv_general_dilated,
            "border": border,
            "strides": per_axis(self.strides, self, "strides"),
            "padding": padding,
            "lhs_dilation": per_axis(self.input_dilation, self, "input_dilation"),
            "rhs_dilation": dilation,
            "dimension_numbers": channels_last(n_spatial),
            "feature_group_count": self.feature_group_count,
        }


@arithmetic
def convolution(
    x: Array,
    kernel: Array,
    bias: Array | None,
    *,
    product: Callable[..., Array],
    border: tuple[Pairs, str] | None,
    strides: tuple[int, ...],
    padding: str | Pairs,
    **options: Any,
) -> Array:
    """The convolution of any number of batch axes, and its bias; ``border``: widths and mode of ``jnp.pad``."""
    x, unfold = fold_batch(x, len(strides))
    if border is not None:
        x = jnp.pad(x, border[0], mode=border[1])
    return add_bias(unfold(product(x, kernel, strides, padding, **options)), bias)


def _check_groups(in_features: int, out_features: int, groups: int) -> None:
    for name, features in (("in_features", in_features), ("out_features", out_features)):
        if features % groups:
            raise ArgumentError(
                f"the groups of a Conv do not divide its {name}",
                found=f"feature_group_count={groups} and {name}={features}",
                expected=f"{name} that is a multiple of feature_group_count",
                do=f"use feature_group_count={math.gcd(in_features, out_features)}, or change {name}",
            )


class ConvTranspose(_Convolution):
    """Transposed convolution: each input position adds a learned window to the output, ``strides`` apart.

    Shapes:
        inputs: ``(..., *spatial, in_features)``. y: ``(..., *spatial_out, out_features)``, where with ``"SAME"`` and
            ``"CIRCULAR"`` padding each spatial length is multiplied by its stride.

    Variables:
        kernel: ``Param``, ``(*kernel_size, in_features, out_features)``, the last two swapped with
            ``transpose_kernel``; ``param_dtype``.
        bias: ``Param``, ``(out_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        in_features: channels of the input.
        out_features: channels of the output.
        kernel_size: window length per spatial axis; ``3`` means ``(3,)``, and images need ``(3, 3)``.
        strides: steps between windows, one number for all axes or one each; ``None`` means 1.
        padding: ``"SAME"``, ``"VALID"``, ``"CIRCULAR"`` (what exceeds one end is added at the other), without strides
            ``"SAME_LOWER"``, in upper or lower case; a number for all sides, or per axis a number or a pair (before,
            after).
        kernel_dilation: spacing of the window's elements; ``None`` means 1.
        use_bias: whether to add a bias.
        mask: multiplies the kernel, in its shape; ``None`` for none.
        dtype: dtype to compute in; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        precision: of the products; see ``jax.lax.Precision``.
        kernel_init: initializer of ``kernel``.
        bias_init: initializer of ``bias``.
        transpose_kernel: flip the window and swap its channel axes, as the gradient of ``Conv`` does.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        preferred_element_type: dtype in which products are accumulated and returned.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of ``kernel``.
        bias_metadata: metadata of ``bias``.

    Raises:
        ShapeError: the input does not have ``in_features`` channels or all spatial axes, or the mask does not have the
            kernel's shape.
        ArgumentError: the padding has an unsupported form.

    Example:
        >>> layer = plait.ConvTranspose(3, 4, (2, 2), strides=2, rngs=plait.Rngs(0))
        >>> layer(jnp.ones((1, 5, 5, 3))).shape
        (1, 10, 10, 4)
    """

    transpose_kernel: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        *,
        padding: Padding = "SAME",
        kernel_dilation: int | Sequence[int] | None = None,
        use_bias: bool = True,
        mask: Array | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        transpose_kernel: bool = False,
        promote_dtype: Callable[..., Any] = promote_dtype,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self._store(locals(), (out_features, in_features) if transpose_kernel else (in_features, out_features))

    def __call__(self, inputs: Array) -> Array:
        inputs, kernel, bias = promoted(self, inputs, masked_kernel(self))
        _check_input(inputs, kernel, self)
        strides = per_axis(self.strides, self, "strides")
        names = ("SAME", "VALID", "CIRCULAR", *(("SAME_LOWER",) if set(strides) == {1} else ()))
        return transposed_convolution(
            inputs,
            kernel,
            bias,
            product=lax.conv_transpose,
            strides=strides,
            padding=resolve_padding(self.padding, self, names),
            rhs_dilation=per_axis(self.kernel_dilation, self, "kernel_dilation"),
            dimension_numbers=channels_last(len(strides)),
            transpose_kernel=self.transpose_kernel,
            **product_options(self, None),
        )


@arithmetic
def transposed_convolution(
    x: Array,
    kernel: Array,
    bias: Array | None,
    *,
    product: Callable[..., Array],
    strides: tuple[int, ...],
    padding: str | Pairs,
    transpose_kernel: bool,
    **options: Any,
) -> Array:
    x, unfold = fold_batch(x, len(strides))
    valid = "VALID" if padding == "CIRCULAR" else padding
    y = product(x, kernel, strides, valid, transpose_kernel=transpose_kernel, **options)
    if padding == "CIRCULAR":
        lengths = [length * stride for length, stride in zip(x.shape[1:-1], strides, strict=True)]
        y = _wrapped_sum(y, lengths, flipped=transpose_kernel)
    return unfold(add_bias(y, bias))


def _check_input(x: Any, kernel: Any, layer: _Convolution) -> None:
    n_spatial = len(layer.kernel_size)
    check_min_rank(x, n_spatial + 1, f"{n_spatial} spatial and one for the channels", layer=layer)
    if getattr(layer, "transpose_kernel", False):
        channels = weight_length(kernel, -1, layer.in_features)
    else:
        groups = getattr(layer, "feature_group_count", 1)
        channels = weight_length(kernel, -2, layer.in_features // groups) * groups
    check_last_axis(x, channels, layer=layer)


def masked_kernel(layer: _Convolution) -> Array:
    """The kernel, times the mask.

    Raises:
        ShapeError: the mask does not have the kernel's shape.
    """
    kernel = layer.kernel[...]
    if layer.mask is None:
        return kernel
    if np.shape(layer.mask) != kernel.shape:
        raise ShapeError(
            "the mask does not have the shape of the kernel",
            at=describe_place(layer),
            found=f"a mask of shape {np.shape(layer.mask)}",
            expected=f"shape {kernel.shape}",
            do=f"broadcast it first: jnp.broadcast_to(mask, {kernel.shape})",
        )
    kernel, mask = promote_dtype((kernel, jnp.asarray(layer.mask)), inexact=False)
    return kernel * mask


def fold_batch(x: Array, n_spatial: int) -> tuple[Array, Callable[[Array], Array]]:
    """``x`` with exactly one batch axis, and a function that restores the batch axes of ``x`` on a result."""
    batch = x.shape[: max(x.ndim - n_spatial - 1, 0)]
    if len(batch) == 1:
        return x, lambda y: y
    folded = jnp.reshape(x, (math.prod(batch), *x.shape[len(batch) :]))
    return folded, lambda y: jnp.reshape(y, (*batch, *y.shape[1:]))


def per_axis(value: int | Sequence[int] | None, layer: _Convolution, name: str) -> tuple[int, ...]:
    """One number for each spatial axis.

    Raises:
        ArgumentError: names the argument and both values.
    """
    n_spatial = len(layer.kernel_size)
    if value is None or isinstance(value, int):
        return (1 if value is None else value,) * n_spatial
    if len(value) != n_spatial:
        raise ArgumentError(
            f"{name} of {describe_type(layer)} does not fit its kernel_size",
            at=describe_place(layer),
            found=f"{name}={tuple(value)} and kernel_size={layer.kernel_size}",
            expected="one number for all spatial axes, or one for each",
            do=f"for example {name}={(tuple(value) + (1,) * n_spatial)[:n_spatial]}" + _for_images(layer),
        )
    return tuple(value)


def resolve_padding(padding: Padding, layer: _Convolution, names: tuple[str, ...]) -> str | Pairs:
    """A padding in JAX's form, or one of these names, in upper case.

    Raises:
        ArgumentError: it is neither one of the names, nor a number, nor one entry per spatial axis.
    """
    n_spatial = len(layer.kernel_size)
    if isinstance(padding, str):
        if padding.upper() in names:
            return padding.upper()
    elif isinstance(padding, int):
        return ((padding, padding),) * n_spatial
    elif isinstance(padding, Sequence):
        sides = [(side, side) if isinstance(side, int) else tuple(side) for side in padding]
        if len(sides) == n_spatial and all(len(side) == 2 for side in sides):
            return tuple((before, after) for before, after in sides)
    raise ArgumentError(
        f"a {type(layer).__name__} over {n_spatial} spatial axes cannot pad like this",
        at=describe_place(layer),
        found=f"padding={padding!r}",
        expected=f"{', '.join(map(repr, names))}, a number, or for each spatial axis a number or a pair",
        do=f"for example padding={((1, 1),) * n_spatial}" + _for_images(layer),
    )


def _for_images(layer: _Convolution) -> str:
    size = layer.kernel_size
    return f"; for images, kernel_size={size * 2}" if len(size) == 1 else ""


def channels_last(n_spatial: int) -> lax.ConvDimensionNumbers:
    """Dimension numbers for one batch axis, spatial axes, channels; kernels have their spatial axes first."""
    data = (0, n_spatial + 1, *range(1, n_spatial + 1))
    return lax.ConvDimensionNumbers(data, (n_spatial + 1, n_spatial, *range(n_spatial)), data)


def _wrapped_sum(y: Array, lengths: Sequence[int], *, flipped: bool) -> Array:
    """The spatial axes of ``y`` wrapped around to the given lengths; entries that coincide are added.

    The middle of ``y`` keeps its position, as with ``"SAME"`` padding. If the excess is odd, a flipped window has the
    longer part at the other end.
    """
    for axis, length in enumerate(lengths, start=1):
        overhang = y.shape[axis] - length
        before = (overhang + (1 if flipped else 0)) // 2
        front = -before % length
        turns = math.ceil((front + y.shape[axis]) / length)
        widths = [(0, 0)] * y.ndim
        widths[axis] = (front, turns * length - front - y.shape[axis])
        y = jnp.pad(y, widths)
        y = jnp.sum(jnp.reshape(y, (*y.shape[:axis], turns, length, *y.shape[axis + 1 :])), axis=axis)
    return y
