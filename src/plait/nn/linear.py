"""Linear maps: a matrix over the last axis, a tensor over several axes, and any einsum."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Param, Weight
from ..core.variables.variable_metadata import VariableMetadata
from ..errors import ArgumentError, ShapeError
from ..typing import Array, DTypeLike, Initializer, PrecisionLike
from ..util.static_values import HashableMapping
from .arithmetic import arithmetic
from .checks import check_array, check_axis, check_last_axis, check_members, check_min_rank, check_rngs, weight_length
from .initializers import default_bias_init, default_kernel_init, initial
from .promotion import add_bias, promote_dtype


class Linear(Module):
    """An affine map over the last axis: ``y = inputs @ kernel + bias``.

    Shapes:
        inputs: ``(..., in_features)``. y: ``(..., out_features)``.

    Variables:
        kernel: ``Param``, ``(in_features, out_features)``, ``param_dtype``.
        bias: ``Param``, ``(out_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        in_features: length of the last axis of ``inputs``.
        out_features: length of the last axis of ``y``.
        use_bias: whether to add a bias.
        dtype: dtype to compute in; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        precision: of the product; see ``jax.lax.Precision``.
        kernel_init: initializer of ``kernel``.
        bias_init: initializer of ``bias``.
        dot_general: replaces ``jax.lax.dot_general``.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        preferred_element_type: dtype in which the product is accumulated and returned.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of ``kernel``.
        bias_metadata: metadata of ``bias``.

    Raises:
        ShapeError: the last axis of ``inputs`` is not ``in_features`` long.

    Example:
        >>> layer = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> layer.kernel.shape, layer(jnp.ones((4, 2))).shape
        ((2, 3), (4, 3))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        dot_general: Callable[..., Array] = lax.dot_general,
        promote_dtype: Callable[..., Any] = promote_dtype,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.dot_general = dot_general
        self.promote_dtype: Callable[..., Any] = promote_dtype
        self.preferred_element_type = preferred_element_type
        check_rngs(rngs, layer=self)
        self.kernel = Param(
            initial(kernel_init, rngs.params, (in_features, out_features), param_dtype), **kernel_metadata
        )
        self.bias: Weight = (
            Param(initial(bias_init, rngs.params, (out_features,), param_dtype), **bias_metadata) if use_bias else None
        )

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        inputs, kernel, bias = promoted(self, inputs, self.kernel[...])
        if self.dot_general is lax.dot_general:  # another may contract other axes
            check_members(kernel, 2, layer=self)
            check_last_axis(inputs, weight_length(kernel, 0, self.in_features), layer=self)
        axes = (((inputs.ndim - 1,), (0,)), ((), ()))
        options = product_options(self, out_sharding)
        return affine(inputs, kernel, bias, product=self.dot_general, axes=axes, **options)  # inputs @ kernel + bias


def promoted(layer: Any, x: Array, kernel: Array) -> tuple[Array, Array, Array | None]:
    """Input, kernel and bias of a layer in one dtype."""
    check_array(x, layer=layer)
    return layer.promote_dtype((x, kernel, None if layer.bias is None else layer.bias[...]), dtype=layer.dtype)


def product_options(layer: Any, out_sharding: Any) -> dict[str, Any]:
    """The keywords of a layer's product. Unset ones are omitted, since a replacement may not accept them."""
    options: dict[str, Any] = {"precision": layer.precision}
    if layer.preferred_element_type is not None:
        options["preferred_element_type"] = layer.preferred_element_type
    if out_sharding is not None:
        options["out_sharding"] = out_sharding
    return options


@arithmetic
def affine(x: Array, kernel: Array, bias: Array | None, *, product: Any, axes: Any, **options: Any) -> Array:
    """``x @ kernel + bias``, where ``product`` is ``lax.dot_general`` or its replacement, and contracts any axes."""
    return add_bias(product(x, kernel, axes, **options), bias)


class LinearGeneral(Module):
    """An affine map over several axes, ``y = tensordot(inputs, kernel, axis) + bias``; optionally one per batch entry.

    The kernel is initialized as a matrix and then reshaped, so its fan-in is the product of all contracted axes.

    Shapes:
        inputs: any shape that has ``in_features`` along ``axis``.
        y: ``(*batch, *rest, *out_features)``: the axes of ``batch_axis``, the axes not contracted, the new axes.

    Variables:
        kernel: ``Param``, ``(*batch, *in_features, *out_features)``, ``param_dtype``.
        bias: ``Param``, ``(*batch, *out_features)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        in_features: lengths of the contracted axes, in their order in ``inputs``.
        out_features: lengths of the new axes.
        axis: the contracted axes of ``inputs``, as many as ``in_features``.
        batch_axis: axes of ``inputs`` with one kernel per entry, and their lengths; leading axes ``0, 1, …``.
        use_bias: whether to add a bias.
        dtype: dtype to compute in; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        kernel_init: initializer of ``kernel``, called for the matrix.
        bias_init: initializer of ``bias``, called for a vector.
        precision: of the product; see ``jax.lax.Precision``.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        dot_general: replaces ``jax.lax.dot_general``.
        dot_general_cls: called without arguments, returns the replacement; used if ``dot_general`` is ``None``.
        preferred_element_type: dtype in which the product is accumulated and returned.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of ``kernel``.
        bias_metadata: metadata of ``bias``.

    Raises:
        ArgumentError: ``axis`` and ``in_features`` differ in number, or ``batch_axis`` is not ``0, 1, …``.
        ShapeError: ``inputs`` does not have ``in_features`` along ``axis``, or has different batch lengths.

    Example:
        >>> layer = plait.LinearGeneral((2, 3), 5, axis=(-2, -1), rngs=plait.Rngs(0))
        >>> layer.kernel.shape, layer(jnp.ones((7, 2, 3))).shape
        ((2, 3, 5), (7, 5))
    """

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int | Sequence[int],
        *,
        axis: int | Sequence[int] = -1,
        batch_axis: Mapping[int, int] = HashableMapping(),
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        precision: PrecisionLike = None,
        promote_dtype: Callable[..., Any] = promote_dtype,
        dot_general: Callable[..., Array] | None = None,
        dot_general_cls: Any = None,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.in_features = as_tuple(in_features)
        self.out_features = as_tuple(out_features)
        self.axis = as_tuple(axis)
        self.batch_axis = HashableMapping(batch_axis)
        self.use_bias = use_bias
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype: Callable[..., Any] = promote_dtype
        self.dot_general = dot_general
        self.dot_general_cls = dot_general_cls
        self.preferred_element_type = preferred_element_type
        if len(self.in_features) != len(self.axis):
            raise ArgumentError(
                "LinearGeneral needs one length for each axis that it contracts",
                found=f"in_features={self.in_features} and axis={self.axis}",
                expected="as many in_features as axes",
                do=f"for example axis={tuple(range(-len(self.in_features), 0))}",
            )
        if sorted(self.batch_axis) != list(range(len(self.batch_axis))):
            raise ArgumentError(
                "the batch axes of LinearGeneral must be the leading axes",
                found=f"batch_axis={dict(self.batch_axis)}",
                expected="the axes 0, 1, … without a gap",
                do="move the batch axes to the front of the input with jnp.moveaxis",
            )
        batch = tuple(self.batch_axis[axis] for axis in sorted(self.batch_axis))
        matrix = (math.prod(batch) * math.prod(self.in_features), math.prod(self.out_features))
        check_rngs(rngs, layer=self)
        kernel = initial(kernel_init, rngs.params, matrix, param_dtype)
        self.kernel = Param(reshaped(kernel, (*batch, *self.in_features, *self.out_features)), **kernel_metadata)
        self.bias: Weight = None
        if use_bias:
            shape = (*batch, *self.out_features)
            bias = initial(bias_init, rngs.params, (math.prod(shape),), param_dtype)
            self.bias = Param(reshaped(bias, shape), **bias_metadata)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        inputs, kernel, bias = promoted(self, inputs, self.kernel[...])
        product = self.dot_general
        if product is None:
            product = lax.dot_general if self.dot_general_cls is None else self.dot_general_cls()
        axes = self.contraction(inputs.ndim)
        if product is lax.dot_general:
            self._check_input(inputs, kernel, axes[0][0])
        if bias is not None and self.batch_axis:  # the batch axes come first, then the rest of the input, the features
            n_batch, n_rest = len(self.batch_axis), inputs.ndim - len(self.batch_axis) - len(self.axis)
            bias = jnp.expand_dims(bias, tuple(range(n_batch, n_batch + n_rest)))
        options = product_options(self, out_sharding)
        return affine(inputs, kernel, bias, product=product, axes=axes, **options)

    def contraction(self, ndim: int) -> Any:
        """The dimension numbers of the product of the kernel and an input with ``ndim`` axes. An axis that the input
        lacks is kept, so that the check reports it."""
        contracted = tuple(sorted(axis + ndim if -ndim <= axis < 0 else axis for axis in self.axis))
        batch = tuple(range(len(self.batch_axis)))
        return (contracted, tuple(range(len(batch), len(batch) + len(contracted)))), (batch, batch)

    def _check_input(self, x: Array, kernel: Array, contracted: tuple[int, ...]) -> None:
        n_batch = len(self.batch_axis)
        check_members(kernel, n_batch + len(self.in_features) + len(self.out_features), layer=self)
        for place, (axis, size) in enumerate(zip(contracted, self.in_features, strict=True), n_batch):
            check_axis(x, axis, weight_length(kernel, place, size), layer=self, size_name="in_features")
        for axis, size in self.batch_axis.items():
            check_axis(x, axis, weight_length(kernel, axis, size), layer=self, size_name="batch_axis")


def as_tuple(value: int | Iterable[int]) -> tuple[int, ...]:
    """One number or several, from Python or NumPy, as a tuple of Python numbers."""
    try:
        return (operator.index(value),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(operator.index, value))  # type: ignore[arg-type]


def without_arrays(value: Any) -> Any:
    """Sizes or axes as given; a NumPy array becomes Python numbers, which are not traced."""
    if not hasattr(value, "dtype"):
        return value
    return tuple(map(without_arrays, value)) if value.ndim else operator.index(value)


def reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    """The initializer's result in a different shape, with its metadata."""
    if not isinstance(value, VariableMetadata):
        return jnp.reshape(value, shape)
    return VariableMetadata(
        jnp.reshape(value.raw_value, shape),
        value.on_set_value,
        value.on_get_value,
        value.on_create_value,
        value.on_add_axis,
        value.on_remove_axis,
        value.metadata,
    )


class Einsum(Module):
    """A learned einsum: ``y = einsum(einsum_str, inputs, kernel) + bias``.

    Shapes:
        inputs, y: given by the equation. The bias has those axes of the output that the kernel has too: letters,
            and axes under the kernel's ellipsis.

    Variables:
        kernel: ``Param``, ``kernel_shape``, ``param_dtype``.
        bias: ``Param``, ``bias_shape``, ``param_dtype``; ``None`` if that is ``None``.

    Args:
        einsum_str: the equation, with ``->`` and two operands: the input, then the kernel. Spaces are ignored.
        kernel_shape: shape of the kernel; a number for one axis.
        bias_shape: shape of the bias, in the order of the output's axes; a number for one axis, ``None`` for no bias.
        dtype: dtype to compute in; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        precision: of the product; see ``jax.lax.Precision``.
        kernel_init: initializer of ``kernel``.
        bias_init: initializer of ``bias``.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        einsum_op: replaces ``jnp.einsum``.
        preferred_element_type: dtype in which the product is accumulated and returned.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of ``kernel``.
        bias_metadata: metadata of ``bias``.

    Raises:
        ArgumentError: the equation has no ``->``, or not exactly two operands.
        ShapeError: the bias does not have the lengths of its letters.

    Example:
        >>> layer = plait.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=plait.Rngs(0))
        >>> layer(jnp.ones((16, 11, 2))).shape
        (16, 11, 8, 4)
    """

    def __init__(
        self,
        einsum_str: str,
        kernel_shape: int | Sequence[int],
        bias_shape: int | Sequence[int] | None = None,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        promote_dtype: Callable[..., Any] = promote_dtype,
        einsum_op: Callable[..., Array] = jnp.einsum,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.einsum_str = resolve_equation(einsum_str)
        self.kernel_shape = as_tuple(kernel_shape)
        self.bias_shape = bias_shape
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype: Callable[..., Any] = promote_dtype
        self.einsum_op = einsum_op
        self.preferred_element_type = preferred_element_type
        check_rngs(rngs, layer=self)
        self.kernel = Param(initial(kernel_init, rngs.params, self.kernel_shape, param_dtype), **kernel_metadata)
        self.bias: Weight = None
        if bias_shape is not None:
            self.bias = Param(initial(bias_init, rngs.params, as_tuple(bias_shape), param_dtype), **bias_metadata)

    def __call__(self, inputs: Array, einsum_str: str | None = None, out_sharding: Any = None) -> Array:
        inputs, kernel, bias = promoted(self, inputs, self.kernel[...])
        equation = self.einsum_str if einsum_str is None else resolve_equation(einsum_str)
        if self.einsum_op is jnp.einsum:
            self._check_input(inputs, kernel, equation)
        y = self.einsum_op(equation, inputs, kernel, **product_options(self, out_sharding))
        return y if bias is None else add_bias(y, self._spread_bias(bias, y, kernel.shape, equation))

    def _check_input(self, x: Array, kernel: Array, equation: str) -> None:
        operands, _ = equation.split("->")
        letters, kernel_letters = operands.split(",")
        check_min_rank(x, len(letters.replace("...", "")), f"the axes {letters!r} of {equation!r}", layer=self)
        kernel_axes = _axes_of_letters(kernel_letters)
        for letter, axis in _axes_of_letters(letters).items():
            size = kernel.shape[kernel_axes[letter]] if letter in kernel_axes else x.shape[axis]
            # If the equation has an ellipsis, axes of length 1 are broadcast.
            if "..." not in equation or 1 not in (size, x.shape[axis]):
                check_axis(x, axis, size, layer=self, size_name=f"kernel_shape for {letter!r}")

    def _spread_bias(self, bias: Array, y: Array, kernel: tuple[int, ...], equation: str) -> Array:
        """The bias with an axis of length 1 for each axis of the output that the kernel does not have."""
        operands, output = equation.split("->")
        kernel_letters = operands.split(",")[1]
        before, dots, after = output.partition("...")
        hidden = y.ndim - len(before) - len(after) if dots else 0
        # If the kernel has an ellipsis, its axes align with the last ones under the output's; length 1 is broadcast.
        first = kernel_letters.find("...")
        covered = kernel[first : first + len(kernel) - len(kernel_letters) + 3] if first >= 0 and hidden else ()
        between = (*(None,) * (hidden - len(covered)), *covered)
        own = [size if letter in kernel_letters else None for letter, size in zip(before, y.shape, strict=False)]
        own += between
        own += [
            size if letter in kernel_letters else None for letter, size in zip(after, y.shape[len(own) :], strict=True)
        ]
        shape = tuple(1 if size is None else size for size in own)
        wanted = tuple(size for size in own if size is not None)
        if [size for size in bias.shape if size != 1] != [size for size in wanted if size != 1]:
            raise ShapeError(
                "the bias of an Einsum does not fit its equation",
                at=describe_place(self),
                found=f"bias_shape={bias.shape} and the equation {equation!r}",
                expected=f"bias_shape={wanted}, the lengths of the output axes that come from the kernel",
                do=f"create the layer with bias_shape={wanted}",
            )
        return jnp.reshape(bias, shape)


def resolve_equation(equation: str) -> str:
    """An einsum equation with two operands, spaces removed.

    Raises:
        ArgumentError: the equation has a different form; the error names it.
    """
    compact = equation.replace(" ", "")
    if compact.count("->") != 1 or compact.split("->")[0].count(",") != 1:
        raise ArgumentError(
            "Einsum cannot use this equation",
            found=f"{equation!r}",
            expected='two operands with exactly one comma, and an explicit output after "->"',
            do='for example "...a,ab->...b": the input, the kernel, the output',
        )
    return compact


def _axes_of_letters(letters: str) -> dict[str, int]:
    """The axis of each letter of an operand; letters after an ellipsis count from the end."""
    before, _, after = letters.partition("...")
    return {letter: axis for axis, letter in enumerate(before)} | {
        letter: axis - len(after) for axis, letter in enumerate(after)
    }
