"""Cells of views: they read one layer of the cell of a stacked variable, and write into it.

All views of a layer share one ``Layer`` for each stacked cell. So it is known which views of a layer exist, and when
the layer gets another block, they keep its value, as a block that was taken out of a list does. The table of layers
refers to them weakly, and is empty in a program without views. (rules ST3, ST16)
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...core.variables.cells import PLAIN_METADATA, SCALARS, Cell
from ...errors import GraphError, ShapeError
from ...util.words import describe_type


def restructured(found: str, at: str | None = None) -> GraphError:
    """The error for a change of the structure of a view."""
    return _all_alike(
        found,
        "model.eval(), plait.view(model, ...), plait.select(model, ...); sow while the model is captured: "
        "plait.capture(model, plait.Intermediate)(x)",
        at,
    )


def _all_alike(found: str, do: str, at: str | None = None) -> GraphError:
    return GraphError(
        "one layer of a stack cannot differ from the others in structure",
        at=at,
        found=f"{found} of one layer",
        expected="new values only",
        do=f"change all layers: {do}; or convert the stack to a list: plait.as_list(model)",
    )


class Layer:
    """One layer of a stacked cell.

    Attributes:
        whole: the stacked cell, or the ``Layer`` of an outer stack; once another block took its place, the layer's own
            cell.
        index: the number of the layer; ``None`` if ``whole`` is its own cell.
        count: how many layers there are.
    """

    __slots__ = ("__weakref__", "count", "index", "whole")

    def __init__(self, whole: Cell | Layer, index: int, count: int) -> None:
        self.whole = whole
        self.index: int | None = index
        self.count = count

    @property
    def raw(self) -> Any:
        raw, index = self.whole.raw, self.index
        if index is None:
            return raw
        return jax.tree.map(lambda array: layer_of(array, index, self.count), raw)

    @raw.setter
    def raw(self, value: Any) -> None:
        index = self.index
        if index is None:
            self.whole.raw = value
        else:
            self.whole.raw = with_layer(self.whole.raw, index, value)

    @property
    def trace(self) -> Any:
        return self.whole.trace

    def keep(self) -> None:
        """Keep the value of now in a cell of its own."""
        cell = Cell()
        cell.version = 0
        cell.raw, cell.trace, cell.metadata = self.raw, self.trace, PLAIN_METADATA
        self.whole, self.index = cell, None


# (id of what is stacked, number of the layer) → the layer. An entry exists as long as a view of the layer, which keeps
# what is stacked alive, so that no other object gets its id.
_layers: weakref.WeakValueDictionary[tuple[int, int], Layer] = weakref.WeakValueDictionary()


def views_exist() -> bool:
    """Whether there is any view of a layer in the process."""
    return len(_layers) > 0


def _stacked_in(cell: Cell) -> Cell | Layer:
    return cell.layer if type(cell) is SliceCell else cell


class SliceCell(Cell):
    """The cell of a variable of a view.

    Args:
        whole: the cell of the stacked variable.
        index: the number of the layer.
        count: how many layers there are.
        metadata: that of one layer.
    """

    __slots__ = ("_metadata", "layer")
    structure_error = staticmethod(restructured)

    def __init__(self, whole: Cell, index: int, count: int, metadata: dict[str, Any]) -> None:
        self.version = 0
        self._metadata = metadata
        stacked = _stacked_in(whole)
        key = (id(stacked), index)
        self.layer = _layers.get(key) or _layers.setdefault(key, Layer(stacked, index, count))

    @property
    def raw(self) -> Any:
        return self.layer.raw

    @raw.setter
    def raw(self, value: Any) -> None:
        self.layer.raw = value

    @property
    def stored(self) -> Cell:
        return origin_of(self)[0]

    @property
    def trace(self) -> Any:
        return self.layer.trace

    @property
    def metadata(self) -> dict[str, Any]:
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Any) -> None:
        raise _all_alike("new metadata of a variable", "model.blocks.set_metadata, or plait.select(model, ...)")


def part_from(cell: Cell, index: int, journal: Any) -> None:
    """Let the views of a layer keep its value, since the layer is about to get another block."""
    key = id(_stacked_in(cell)), index
    layer = _layers.get(key)
    if layer is not None:
        journal.note(_join_again, key, layer, layer.whole)
        del _layers[key]
        layer.keep()


def _join_again(key: tuple[int, int], layer: Layer, whole: Any) -> None:
    layer.whole, layer.index = whole, key[1]
    _layers[key] = layer


def origin_of(cell: Cell) -> tuple[Cell, tuple[int, ...]]:
    """The stored cell behind the cell of a view, and the number of the layer in each stack, outermost first."""
    indices: list[int] = []
    at: Any = _stacked_in(cell)
    while isinstance(at, Layer):
        if at.index is not None:
            indices.append(at.index)
        at = at.whole
    return at, tuple(reversed(indices))


def layer_of(array: Any, index: int, count: int) -> Any:
    """One layer of a stacked array or of a stacked ``ShapeDtypeStruct``.

    Raises:
        ShapeError: the array has no axis of ``count`` layers.
    """
    shape = np.shape(array)
    if not shape or shape[0] != count:
        raise no_layers(None, shape)
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape[1:], array.dtype, sharding=_inner(array.sharding))
    return array[index]


def no_layers(at: str | None, shape: Any) -> ShapeError:
    """The error for a value in a stack that has no axis of layers, such as one that a method of its block set."""
    return ShapeError(
        "a value in a stack has no axis of layers",
        at=at,
        found=f"an array of shape {tuple(shape)}",
        expected="one value for each layer, along the first axis",
        do="create it in the constructor of the block, before the blocks are stacked; a cache of attention also with "
        "plait.view(model, decode=True, batch_size=..., max_length=...)",
    )


def _inner(sharding: Any) -> Any:
    """The sharding of one layer, from that of the stacked array."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


def with_layer(raw: Any, index: int, value: Any) -> Any:
    """A stacked value with another value for one layer.

    Raises:
        ShapeError: its type, shapes or dtypes are not those of the other layers.
        GraphError: the other layers have shapes, but no values yet.
    """
    arrays, treedef = jax.tree.flatten(raw)
    parts, own = jax.tree.flatten(value)
    if own != treedef:
        raise ShapeError(
            "one layer of a stack was given a value of a different type",
            found=describe_type(value),
            expected=f"a value of the same type as in the other layers: {describe_type(raw)}",
            do="convert the stack to a list: plait.as_list(model)",
        )
    for array, part in zip(arrays, parts, strict=True):
        _check_part(array, part)
    new = [_with_part(array, index, part) for array, part in zip(arrays, parts, strict=True)]
    return jax.tree.unflatten(treedef, new)


def _check_part(array: Any, part: Any) -> None:
    if isinstance(array, jax.ShapeDtypeStruct):
        raise _all_alike("a value for one layer, when the others only have a shape", "initialize the whole model first")
    is_number = isinstance(part, SCALARS)
    fits = _holds(array.dtype, part) if is_number else getattr(part, "dtype", None) == array.dtype
    if np.shape(part) != array.shape[1:] or not fits:
        raise ShapeError(
            "one layer of a stack was given a value with a different shape or dtype",
            found=f"the number {part}"
            if is_number
            else f"{getattr(part, 'dtype', type(part).__name__)}{np.shape(part)}",
            expected=f"{array.dtype}{array.shape[1:]}, since the layers of a stack are stored as one array",
            do="cast it, or convert the stack to a list: plait.as_list(model)",
        )


def _holds(dtype: Any, number: Any) -> bool:
    """Whether an array of this dtype has a place for a Python number: of its kind, and within its range."""
    if jnp.issubdtype(dtype, jnp.integer) and not isinstance(number, (float, complex)):
        return jnp.iinfo(dtype).min <= number <= jnp.iinfo(dtype).max
    kinds = zip(SCALARS, (np.generic, np.number, np.inexact, np.complexfloating), strict=True)
    return jnp.issubdtype(dtype, next(kind for python, kind in kinds if isinstance(number, python)))


def _with_part(array: Any, index: int, part: Any) -> Any:
    if isinstance(array, np.ndarray):
        array = array.copy()
        array[index] = part
        return array
    return array.at[index].set(part)
