"""Weight-only quantization: the weights of a trained model as integers of 8 or 4 bits, with a scale for each group.

A weight is a matrix: its rows are what a product sums over (for an ``Embed``, its features), its columns the rest. Each
column, or each group of adjacent rows in it, has one scale: ``weight ≈ code · scale``, with ``scale = max |weight| /
127`` (7 for 4 bits). A layer reads its weight in its own dtype again, and computes as before; XLA reads the codes.

Reference: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, arXiv:2305.14314 (adapters on top).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..core.functional.merge import clone
from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.nodes.nodes import iter_graph_nodes
from ..core.variables.variable_kinds import Param
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..nn.embedding import Embed
from ..nn.low_rank import axes_of, form_of, kinds_with_form
from ..typing import Array
from ..util.jax_versions import on_all_devices
from ..util.paths import Path, describe_path
from ..util.words import describe_type
from .selection import Selection, select

LARGEST = {8: 127, 4: 7}


class Quantized(Variable[Any]):
    """Codes or scales of a quantized weight; not a ``Param``, so no optimizer changes it.

    Example:
        >>> model = plait.Sequential(plait.Linear(4, 2, rngs=plait.Rngs(0)))
        >>> _ = plait.quantize(plait.select(model, plait.Linear))
        >>> plait.state(model, plait.Quantized)["layers"][0]["kernel"]["codes"].dtype.name
        'int8'
    """


class QuantizedWeight(Module):
    """Replaces a variable of a layer: its codes and scales, and the value that they make.

    Variables:
        codes: ``Quantized``, ``(rows, columns)``, int8; for 4 bits ``(rows / 2, columns)``, uint8, two in each.
        scale: ``Quantized``, ``(groups, columns)``, float32.

    Args:
        weight: the variable.
        rows: the axes that become rows, in order; counted from the end.
        bits: 8 or 4.
        group_size: how many rows have one scale; ``None`` means all.
    """

    def __init__(self, weight: Variable[Any], rows: tuple[int, ...], bits: int, group_size: int | None) -> None:
        value = weight.value
        self.size, self.dtype, self.bits = value.shape, value.dtype, bits
        self.order = _order(value, rows)
        self.sharding = weight.get_metadata().get("out_sharding")
        codes, scale = codes_and_scale(value, rows, bits, group_size)
        self.codes, self.scale = Quantized(codes), Quantized(scale)

    @property
    def value(self) -> Array:
        """The weight, in its own shape and dtype."""
        codes, scale = map(on_all_devices, (self.codes.value, self.scale.value))
        codes = codes if self.bits == 8 else _unpacked(codes)
        groups = codes.astype(jnp.float32).reshape(scale.shape[0], -1, scale.shape[1]) * scale[:, None]
        own = groups.reshape([self.size[axis] for axis in self.order])
        return jnp.transpose(own, np.argsort([axis % own.ndim for axis in self.order]).tolist()).astype(self.dtype)

    @value.setter
    def value(self, value: Any) -> None:
        raise ArgumentError(
            "a quantized weight cannot be written",
            at=describe_place(self),
            found="a new value, for example that of merge_lora",
            expected="a weight that is not quantized",
            do="call plait.dequantize(model) first",
        )

    def __getitem__(self, index: Any) -> Array:
        """The weight, or a part of it, as from the variable it replaces."""
        return self.value if index is ... else self.value[index]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.size

    @property
    def ndim(self) -> int:
        """The number of axes of the weight."""
        return len(self.size)

    def get_metadata(self) -> dict[str, Any]:
        """The axis names of the weight, for factors beside it."""
        return {} if self.sharding is None else {"out_sharding": self.sharding}


def codes_and_scale(value: Array, rows: tuple[int, ...], bits: int, group_size: int | None) -> tuple[Array, Array]:
    """The values of a ``QuantizedWeight``, from its arguments."""
    n_rows = math.prod(value.shape[axis] for axis in rows)
    matrix = jnp.transpose(value, _order(value, rows)).reshape(n_rows, -1).astype(jnp.float32)
    groups = matrix.reshape(n_rows // (group_size or n_rows), -1, matrix.shape[1])
    largest = jnp.max(jnp.abs(groups), axis=1, keepdims=True)
    scale = largest / LARGEST[bits]
    scale = jnp.where(scale > 0, scale, 1)  # also where the quotient underflows
    codes = jnp.round(groups / scale).astype(jnp.int8).reshape(matrix.shape)
    return codes if bits == 8 else _packed(codes), scale[:, 0]


def _order(value: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    return (*rows, *(axis for axis in range(-value.ndim, 0) if axis not in rows))


class QuantizedLayer(NamedTuple):
    """What quantization did to one layer.

    Attributes:
        path: the path of the weight, for example ``blocks[3].attention.query.kernel``.
        shape: of the weight.
        size, quantized_size: in bytes, before and after.
        error: the root of the mean squared error over that of the mean square.
    """

    path: str
    shape: tuple[int, ...]
    size: int
    quantized_size: int
    error: float


class QuantizationReport(tuple[QuantizedLayer, ...]):
    """A ``QuantizedLayer`` for each layer; printed as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        total = sum(each.size for each in self), sum(each.quantized_size for each in self)
        rows = [(e.path, str(e.shape), f"{e.size:,}", f"{e.quantized_size:,}", f"{e.error:.2%}") for e in self]
        rows = [("weight", "shape", "bytes", "quantized", "error"), *rows]
        rows.append(("total", "", f"{total[0]:,}", f"{total[1]:,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(x.ljust(w) if i < 2 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)


def quantize(selection: Selection, bits: int = 8, *, group_size: int | None = None) -> QuantizationReport:
    """Store the weights of layers as integers, with one scale for each output channel, or for each group in it.

    The layers compute in their own dtype, with the weights that codes and scales make. Biases, norms and unselected
    layers stay. Each layer of a ``Stack`` is quantized separately. Adapters of ``plait.add_lora`` go on top, and only
    they are trained then; a quantized model is saved and exported like any other.

    Args:
        selection: layers of kind ``Linear``, ``LinearGeneral``, ``Einsum``, ``Conv`` or ``Embed``, from
            ``plait.select``; the model is changed in place.
        bits: 8 or 4.
        group_size: how many inputs of a channel have one scale; ``None`` means all. Smaller groups have smaller errors
            and more scales; 32 to 128 are usual for 4 bits.

    Returns:
        Size and error of each layer.

    Raises:
        ArgumentError: ``bits`` is neither 8 nor 4; a selected part is not such a layer, is quantized already, was made
            by ``vmap``, or has a weight that is not finite; ``group_size`` does not divide its inputs, or their number
            is odd and ``bits`` is 4. The model is unchanged.

    Example:
        >>> model = plait.Sequential(plait.Linear(64, 16, rngs=plait.Rngs(0)))
        >>> x, y = jnp.ones(64), model(jnp.ones(64))
        >>> report = plait.quantize(plait.select(model, plait.Linear), bits=4, group_size=32)
        >>> [(each.path, each.size, each.quantized_size) for each in report]
        [('layers[0].kernel', 4096, 640)]
        >>> bool(abs(model(x) - y).max() < 0.5)
        True
    """
    check_bits(bits)
    found: list[QuantizedLayer] = []

    def quantized(path: Path, layer: Any) -> Any:
        _check(path, layer, bits, group_size)
        form = form_of(layer)
        assert form is not None
        weight = getattr(layer, form.weight)
        new, made = with_quantized(layer, bits, group_size)
        found.append(_described((*path, form.weight), weight.value, made))
        return new

    selection.replace(quantized)
    return QuantizationReport(found)


def check_bits(bits: int) -> None:
    """Raise for other numbers than 8 and 4."""
    if bits not in LARGEST:
        raise ArgumentError("there is no such quantization", found=f"bits={bits!r}", expected="8 or 4", do="pass 8")


def with_quantized(layer: Any, bits: int, group_size: int | None) -> tuple[Any, QuantizedWeight]:
    """A copy of a layer that shares all variables but its weight, which is quantized; and that weight."""
    form = form_of(layer)
    assert form is not None
    new = clone(layer, variables=False, graph=True)
    made = QuantizedWeight(getattr(layer, form.weight), quantized_rows(layer), bits, group_size)
    setattr(new, form.weight, made)
    return new, made


def dequantize(model: Any) -> None:
    """Replace quantized weights by the ``Param``s that they make, in place.

    Raises:
        ArgumentError: the model has no quantized weight.

    Example:
        >>> model = plait.Sequential(plait.Linear(4, 2, rngs=plait.Rngs(0)))
        >>> _ = plait.quantize(plait.select(model, plait.Linear))
        >>> plait.dequantize(model)
        >>> type(model.layers[0].kernel).__name__
        'Param'
    """
    if not any(isinstance(node, QuantizedWeight) for _, node in iter_graph_nodes(model)):
        raise ArgumentError(
            "the model has no quantized weight",
            at=describe_type(model),
            found="ordinary weights",
            expected="a model after plait.quantize",
            do="call it only after plait.quantize",
        )

    def restored(_: Path, weight: Any) -> Any:
        return Param(weight.value, **weight.get_metadata())

    select(model, QuantizedWeight).replace(restored)


def _described(path: Path, weight: Array, made: QuantizedWeight) -> QuantizedLayer:
    wide, error = (np.asarray(x.astype(jnp.float32), np.float64) for x in (weight, made.value))
    whole = np.sqrt(np.mean(wide**2))
    error = float(np.sqrt(np.mean((wide - error) ** 2)) / whole) if whole else 0.0
    return QuantizedLayer(describe_path(path), weight.shape, weight.nbytes, _bytes(made), error)


def _bytes(made: QuantizedWeight) -> int:
    return made.codes.value.nbytes + made.scale.value.nbytes


def quantized_rows(layer: Any) -> tuple[int, ...]:
    """The axes of the weight that share a scale: those that a product sums over, or an embedding's features."""
    axes, kind = axes_of(layer), "o" if isinstance(layer, Embed) else "i"
    return tuple(place - len(axes) for place, each in enumerate(axes) if each == kind)


def _check(path: Path, layer: Any, bits: int, group_size: int | None) -> None:
    form = form_of(layer)
    weight: Any = None if form is None else getattr(layer, form.weight)
    if form is None or isinstance(weight, QuantizedWeight):
        raise ArgumentError(
            "this part cannot be quantized",
            at=describe_path(path),
            found=describe_type(layer) + ("" if form is None else ", which is quantized already"),
            expected=f"one of {', '.join(kinds_with_form())}",
            do="select only those: plait.quantize(plait.select(model, plait.Linear))",
        )
    if weight.ndim != len(axes_of(layer)):
        raise ArgumentError(
            "a layer that vmap made cannot be quantized",
            at=describe_path((*path, form.weight)),
            found=f"shape {weight.shape}, with leading axes",
            expected=f"{len(axes_of(layer))} axes",
            do="make the layers as a plait.Stack, whose layers are quantized one by one",
        )
    check_finite((*path, form.weight), weight.value)
    check_inputs((*path, form.weight), layer, bits, group_size)


def check_finite(path: Path, value: Array) -> None:
    """Raise if a weight is not finite."""
    odd = int(value.size - jnp.sum(jnp.isfinite(value)))
    if odd:
        raise ArgumentError(
            "a weight that is not finite cannot be quantized",
            at=describe_path(path),
            found=f"{odd} of {value.size} values that are infinite or NaN",
            expected="finite values",
            do="find out what made them: one would spoil all weights that share its scale",
        )


def check_inputs(path: Path, layer: Any, bits: int, group_size: int | None) -> None:
    """Raise if the inputs of a layer do not fit its quantization."""
    form = form_of(layer)
    assert form is not None
    weight = getattr(layer, form.weight)
    size = math.prod(weight.shape[axis] for axis in quantized_rows(layer))
    if size % (group_size or 1) or (bits == 4 and size % 2):
        raise ArgumentError(
            "the inputs of a layer do not fit its quantization",
            at=describe_path(path),
            found=f"{size} inputs, bits={bits} and group_size={group_size}",
            expected="a multiple of group_size, and of 2 for 4 bits",
            do="choose another group_size, or quantize this layer with 8 bits",
        )


def _packed(codes: Array) -> Array:
    """Two rows of codes from -8 to 7 in each byte, the first in the low bits."""
    first, second = ((codes[i::2] + 8).astype(jnp.uint8) for i in (0, 1))
    return first | (second << 4)


def _unpacked(packed: Array) -> Array:
    pairs = jnp.stack([packed & 15, packed >> 4], axis=1)
    return pairs.reshape(-1, packed.shape[1]).astype(jnp.int8) - 8
