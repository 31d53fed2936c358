"""Low-rank forms of layers: what the two factors beside a layer's weight look like, and how they map its input.

Each axis of a weight is contracted with the input (``i``), new in the output (``o``), or in both (``b``, a batch axis).
The factors of rank ``r`` have the axes ``(*b, *i, r)`` and ``(*b, r, *o)``, and their product that of the weight:

    layer          weight     axes                      x → h = A(x)                    h → B(h)
    Linear         kernel     i o                       product over the last axis      the same
    LinearGeneral  kernel     b… i… o…                  product over its axes           product over the last axis
    Einsum         kernel     by letter                 einsum                          einsum
    Conv           kernel     i… i o (window, in, out)  the same convolution, to rank   product over the last axis
    Embed          embedding  i o                       rows of A                       product over the last axis
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import lax

from ..core.nodes.module import Module
from ..core.variables.variables import Variable
from ..typing import Array
from .conv import Conv, convolution
from .embedding import Embed
from .linear import Einsum, Linear, LinearGeneral, product_options

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class LowRankForm:
    """How low-rank factors fit one kind of layer.

    Attributes:
        weight: the name of the weight.
        axes: of a layer's weight: a string of ``b``, ``i`` and ``o``; ``None`` if there is no such form for this layer.
        down: ``(layer, x, a)`` to ``h``, whose last axis is the rank.
        up: ``(layer, h, b, out_sharding)`` to an array like the layer's output.
        takes_indices: whether the input is integers.
    """

    weight: str
    axes: Callable[[Any], str | None]
    down: Callable[[Any, Array, Array], Array]
    up: Callable[[Any, Array, Array, Any], Array]
    takes_indices: bool = False


def form_of(layer: Any) -> LowRankForm | None:
    """The form for a layer; ``None`` if it has none."""
    form = next((form for kind, form in _FORMS.items() if isinstance(layer, kind)), None)
    return form if form is not None and form.axes(layer) else None


def weight_sizes(layer: Module) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths of the contracted and of the new axes of a layer's weight, without leading axes that vmap added."""
    _, ins, outs = _by_kind(layer, weight_of(layer).shape)
    return ins, outs


def factor_shapes(layer: Module, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of both factors, without leading axes that vmap added to the weight."""
    batch, ins, outs = _by_kind(layer, weight_of(layer).shape)
    return (*batch, *ins, rank), (*batch, rank, *outs)


def stack_of(layer: Module) -> tuple[int, ...]:
    """The leading axes that vmap added to a layer's weight."""
    shape = weight_of(layer).shape
    return shape[: len(shape) - len(axes_of(layer))]


def factor_names(layer: Module) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The axis names of the factors, from those of the weight; ``None`` if it has none."""
    weight = weight_of(layer)
    names = weight.get_metadata().get("out_sharding")
    if not isinstance(names, tuple) or len(names) != weight.ndim:
        return None
    stack = names[: len(stack_of(layer))]
    batch, ins, outs = _by_kind(layer, names)
    return (*stack, *batch, *ins, None), (*stack, *batch, None, *outs)


def weight_of(layer: Module) -> Variable[Any]:
    """The variable beside which the factors are."""
    form = form_of(layer)
    assert form is not None
    return getattr(layer, form.weight)


def axes_of(layer: Module) -> str:
    """The kind of each axis of the weight."""
    form = form_of(layer)
    axes = None if form is None else form.axes(layer)
    assert axes is not None
    return axes


def _by_kind(layer: Module, values: Sequence[T]) -> list[tuple[T, ...]]:
    """The values of the batch, the contracted and the new axes, from one for each axis of the weight; those of leading
    axes that vmap added are left out."""
    axes = axes_of(layer)
    own = values[len(values) - len(axes) :]
    return [tuple(value for value, kind in zip(own, axes, strict=True) if kind == of) for of in "bio"]


def product_of(layer: Module, a: Array, b: Array) -> Array:
    """The product of two factors, in the shape of the layer's weight."""
    shape, axes = weight_of(layer).shape, axes_of(layer)
    lead = len(shape) - len(axes)
    order = [place for kind in "bio" for place, each in enumerate(axes) if each == kind]
    batch, ins, outs = _by_kind(layer, shape)
    matrices, rank = (*shape[:lead], math.prod(batch)), a.shape[-1]
    product = jnp.reshape(a, (*matrices, math.prod(ins), rank)) @ jnp.reshape(b, (*matrices, rank, math.prod(outs)))
    product = jnp.reshape(product, (*shape[:lead], *batch, *ins, *outs))
    return jnp.transpose(product, (*range(lead), *(lead + order.index(place) for place in range(len(axes)))))


# Forms ----------------------------------------------------------------------------------------------------------------


def _up(layer: Any, h: Array, b: Array, out_sharding: Any, n_batch: int = 0) -> Array:
    batch = tuple(range(n_batch))
    precision = getattr(layer, "precision", None)
    axes = (((h.ndim - 1,), (n_batch,)), (batch, batch))
    return lax.dot_general(h, b, axes, precision=precision, out_sharding=out_sharding)


def _linear_down(layer: Linear, x: Array, a: Array) -> Array:
    return lax.dot_general(x, a, (((x.ndim - 1,), (0,)), ((), ())), precision=layer.precision)


def _general_axes(layer: LinearGeneral) -> str:
    return "b" * len(layer.batch_axis) + "i" * len(layer.in_features) + "o" * len(layer.out_features)


def _general_down(layer: LinearGeneral, x: Array, a: Array) -> Array:
    return lax.dot_general(x, a, layer.contraction(x.ndim), precision=layer.precision)


def _general_up(layer: LinearGeneral, h: Array, b: Array, out_sharding: Any) -> Array:
    return _up(layer, h, b, out_sharding, len(layer.batch_axis))


def _einsum_axes(layer: Einsum) -> str | None:
    x, kernel, y = _operands(layer)
    if "." in kernel or len({*kernel}) < len(kernel) or not {*kernel} <= {*x, *y}:
        return None
    return "".join("i" if letter not in y else "o" if letter not in x else "b" for letter in kernel)


def _operands(layer: Einsum) -> tuple[str, str, str]:
    operands, y = layer.einsum_str.split("->")
    x, kernel = operands.split(",")
    return x, kernel, y


def _einsum_letters(layer: Einsum) -> tuple[str, str, str, str, str]:
    """The letters of input, first factor, what is between them, second factor, and output."""
    x, kernel, y = _operands(layer)
    batch, ins, outs = map("".join, _by_kind(layer, kernel))
    rank = next(letter for letter in "rRzZqQ" + "abcdefghijklmnopstuvwxy" if letter not in x + kernel + y)
    h = "".join(letter for letter in x if letter not in ins) + rank
    return x, batch + ins + rank, h, batch + rank + outs, y


def _einsum_down(layer: Einsum, x: Array, a: Array) -> Array:
    of_x, of_a, of_h, _, _ = _einsum_letters(layer)
    return jnp.einsum(f"{of_x},{of_a}->{of_h}", x, a, precision=layer.precision)


def _einsum_up(layer: Einsum, h: Array, b: Array, out_sharding: Any) -> Array:
    _, _, of_h, of_b, of_y = _einsum_letters(layer)
    return jnp.einsum(f"{of_h},{of_b}->{of_y}", h, b, precision=layer.precision, out_sharding=out_sharding)


def _conv_axes(layer: Conv) -> str | None:
    if layer.feature_group_count != 1 or layer.mask is not None:
        return None
    return "i" * (len(layer.kernel_size) + 1) + "o"


def _conv_down(layer: Conv, x: Array, a: Array) -> Array:
    return convolution(x, a, None, **layer.window(), **product_options(layer, None))


def _embed_down(layer: Embed, x: Array, a: Array) -> Array:
    return jnp.take(a, x, axis=0)


_FORMS: dict[type, LowRankForm] = {
    Linear: LowRankForm("kernel", lambda layer: "io", _linear_down, _up),
    LinearGeneral: LowRankForm("kernel", _general_axes, _general_down, _general_up),
    Einsum: LowRankForm("kernel", _einsum_axes, _einsum_down, _einsum_up),
    Conv: LowRankForm("kernel", _conv_axes, _conv_down, _up),
    Embed: LowRankForm("embedding", lambda layer: "io", _embed_down, _up, takes_indices=True),
}


def kinds_with_form() -> Sequence[str]:
    """The names of the layers that have a form, for errors."""
    return [kind.__name__ for kind in _FORMS]
