"""Blocks of equal structure as one block whose arrays have a leading axis of layers, and its layers as views.

A view is a separate block with variables whose cells are slices: they read from the stacked array and write to it. A
view can change only values, since all layers of a stack have the same structure. (rules ST1 to ST3)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...core import hooks
from ...core.functional.merge import clone
from ...core.functional.update import children_by_key
from ...core.graph.axes import PARTITION_NAME, drop_axis, has_axis_metadata, put_axis
from ...core.graph.diff import diff
from ...core.graph.graphdef import GraphDef
from ...core.graph.unflatten import Builder
from ...core.graph.walks import Walk, path_of
from ...core.intermediates.sowing import RECORD, set_record, sows
from ...core.nodes.journal import Journal
from ...core.nodes.nodes import Kind, change_of, iter_graph_nodes, iter_variables, kind_of
from ...core.nodes.pytree import Pytree, own_info
from ...core.variables.cells import PLAIN_METADATA, NodeInfo, as_stored, read
from ...core.variables.variables import Variable, eager_sharding_hooks, make_variable
from ...errors import ArgumentError, SharingError
from ...util.jax_versions import is_mutable_array
from ...util.paths import Path, describe_path, in_list_order, layers_of
from ...util.static_values import same_static
from .every_layer import axes_along
from .layer_cells import (
    SliceCell,
    layer_of,
    no_layers,
    origin_of,
    part_from,
    restructured,
    with_layer,
)
from .layers_once import check_once

Write = Callable[[Journal], None]


def check_layers(block: Any, number: int, name: str) -> None:
    """Raise if a variable of a stacked block has no axis of layers.

    Args:
        number: of the layers.
        name: of the block, for errors.

    Raises:
        ShapeError: names the variable.
    """
    for path, variable in iter_variables(block):
        for leaf in jax.tree.leaves(variable.get_raw_value()):
            if hasattr(leaf, "shape") and np.shape(leaf)[:1] != (number,):
                raise no_layers(f"{name}.{describe_path(path)}", np.shape(leaf))


class ViewInfo(NodeInfo):
    """The info of a node of a view, whose structure is that of all layers.

    Attributes:
        source: of the root of a view of a stack: the stack, referred to weakly, the number of the layer, and the key of
            the block that holds it.
    """

    __slots__ = ("source",)
    structure_error = staticmethod(restructured)
    exempt_attributes = (RECORD,)


def layer_view(stacked: Any, index: int, count: int, axis: str | None) -> Any:
    """A view of one layer of a stacked block.

    Args:
        count: how many layers there are.
        axis: the name of the stacked axis.
    """
    walk = Walk()
    graphdef = walk.add(stacked)

    def slices(definitions: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        return [_slice(variable, index, count, axis) for variable in leaves]

    leaves = [leaf if isinstance(leaf, Variable) else layer_of(leaf, index, count) for leaf in walk.leaves]
    made: dict[int, Any] = {}
    view = Builder(made, make_variables=slices).build(graphdef, leaves)
    for whole, number in walk.refs.items():
        if isinstance(whole, Pytree):
            info = ViewInfo(whole._pytree__info.trace, own_info(made[number]).marks)
            info.version = 1
            object.__setattr__(made[number], "_pytree__info", info)
    return view


def _slice(variable: Variable[Any], index: int, count: int, axis: str | None) -> Variable[Any]:
    cell = variable._cell
    metadata = cell.metadata
    names = {PARTITION_NAME: axis}
    if metadata is not PLAIN_METADATA and has_axis_metadata(variable, names):
        inner = make_variable(type(variable), cell.raw, dict(metadata), cell.trace)
        drop_axis(inner, 0, names)
        metadata = inner._cell.metadata
    view = object.__new__(type(variable))
    object.__setattr__(view, "_cell", SliceCell(cell, index, count, metadata))
    return view


def is_same_layer(view: Any, other: Any) -> bool:
    """Whether another block is a view of the same layer, or that block itself."""
    if type(view) is not type(other):
        return False
    ours, theirs = ([origin_of(variable._cell) for _, variable in iter_variables(block)] for block in (view, other))
    return bool(ours) and ours == theirs


def layer_writes(stacked: Any, view: Any, index: int, block: Any, names: tuple[str, str]) -> list[Write]:
    """A function that writes the values of another block into one layer of a stacked block. They are read now.

    Args:
        view: a view of the layer.
        names: of the layer and of the block, for errors.

    Raises:
        ArgumentError: the block has another structure.
    """
    whole, other = Walk(), Walk(exact=False)
    whole.add(_without_records(stacked))
    check_equal(Walk(exact=False).add(_without_records(view)), other.add(_without_records(block)), *names)
    values = [new.get_raw_value() if isinstance(new, Variable) else new for new in other.leaves]
    return [
        functools.partial(_write_layer, stacked, path_of(link), leaf, index, value)
        for leaf, link, value in zip(whole.leaves, whole.links, values, strict=True)
    ]


def _without_records(block: Any) -> Any:
    """The block itself, or during a capture a copy with the same variables and without what was sown."""
    if not any(sows(node) for _, node in iter_graph_nodes(block)):
        return block
    copied = clone(block, variables=False, graph=True)
    for _, node in iter_graph_nodes(copied):
        if sows(node):
            set_record(node, None)
    return copied


def _write_layer(block: Any, path: Path, leaf: Any, index: int, value: Any, journal: Journal) -> None:
    """Write a new value into a layer. The views that it has so far keep the old value."""
    if isinstance(leaf, Variable):
        new = with_layer(leaf.get_raw_value(), index, value)
        journal.note_cell(leaf._cell)
        part_from(leaf._cell, index, journal)
        leaf.set_raw_value(new)
        return
    for key in path[:-1]:
        block = children_by_key(block)[key]
    new = with_layer(children_by_key(block)[path[-1]], index, value)
    set_key = change_of("set", block, path[-1], new, describe_path(path))
    journal.note_node(block)
    set_key(block, path[-1], new)


def layer_copy(stacked: Any, index: int, count: int, axis: str | None) -> Any:
    """A copy of one layer of a stacked block."""
    return clone(layer_view(stacked, index, count, axis), graph=True)


def stacked(blocks: Sequence[Any], axis: str | None, names: Callable[[int], str] = "blocks[{}]".format) -> Any:
    """One block with the arrays of all blocks, stacked along a new first axis.

    Args:
        axis: the name of the axis.
        names: the user's name of a block, by its number.

    Raises:
        ArgumentError: the blocks differ; the error names the path.
        SharingError: two of them share a variable.
    """
    walks = [Walk(exact=False) for _ in blocks]
    graphdefs = [walk.add(block) for walk, block in zip(walks, blocks, strict=True)]
    owners: dict[int, str] = {}
    for number, walk in enumerate(walks):
        check_equal(graphdefs[0], graphdefs[number], names(0), names(number))
        for leaf, link in zip(walk.leaves, walk.links, strict=True):
            at = f"{names(number)}.{describe_path(path_of(link))}"
            if isinstance(leaf, Variable) and owners.setdefault(id(leaf), at) != at:
                raise SharingError(
                    "blocks of a stack cannot share variables",
                    at=f"{owners[id(leaf)]} and {at} (the same {type(leaf).__name__})",
                    found="one variable in two blocks",
                    expected="separate variables for each block",
                    do="pass the shared layer to the blocks as an argument of each call",
                )
    leaves = []
    for position, (first, link) in enumerate(zip(walks[0].leaves, walks[0].links, strict=True)):
        parts = [walk.leaves[position] for walk in walks]
        values = [read(part._cell.raw) if isinstance(part, Variable) else part for part in parts]
        at = describe_path(path_of(link))
        array = _stack_trees(values, lambda number, at=at: f"{names(number)}.{at}")
        leaves.append(first.copy(array) if isinstance(first, Variable) else array)
    block = Builder().build(Walk().add(blocks[0]), leaves)
    for _, variable in iter_variables(block):
        put_axis(variable, 0, {PARTITION_NAME: axis})
    place_new(block)
    return block


def described(block: Any) -> tuple[GraphDef, list[Any]]:
    """What must be equal in the blocks of a stack: the structure, and each shape and dtype."""
    walk = Walk(exact=False)
    graphdef = walk.add(block)
    values = [leaf._cell.raw if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    return graphdef, [jax.tree.map(_shape_of, value) for value in values]


def _shape_of(value: Any) -> tuple[Any, Any]:
    return np.shape(value), getattr(value, "dtype", type(value))


def smallest_period(items: Sequence[Any]) -> int:
    """The number of items after which the sequence repeats."""
    count = len(items)
    return next(p for p in range(1, count + 1) if all(items[i] == items[i - p] for i in range(p, count)))


def check_equal(first: GraphDef, other: GraphDef, name: str, other_name: str) -> None:
    """Raise if the blocks have different structures.

    Raises:
        ArgumentError: the error names the first differences.
    """
    if first != other:
        raise ArgumentError(
            "the blocks of a stack differ",
            at=f"{name} and {other_name}",
            found=str(diff(first, other)).replace("\n", "; ")[:400] or "a different structure",
            expected="blocks of one class with equal static attributes, or a pattern of period=... such blocks",
            do="make them equal; or, if a pattern repeats, pass its length as the period; or keep the list",
        )


def _stack_trees(values: list[Any], at: Callable[[int], str]) -> Any:
    treedef = jax.tree.structure(values[0])
    for number, value in enumerate(values):
        has_ref = any(map(is_mutable_array, jax.tree.leaves(value)))
        if has_ref or jax.tree.structure(value) != treedef or _described(value) != _described(values[0]):
            raise ArgumentError(
                "the blocks of a stack differ",
                at=f"{at(0)} and {at(number)}",
                found=f"{_described(values[0])} and {_described(value)}",
                expected="arrays with the same shape and dtype, and no references",
                do="make them equal, or keep the list",
            )
    return jax.tree.map(lambda *leaves: _stack(leaves), *values)


def _described(value: Any) -> str:
    leaves = jax.tree.leaves(value)
    return ", ".join(f"{getattr(leaf, 'dtype', type(leaf).__name__)}{np.shape(leaf)}" for leaf in leaves)


def _stack(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        sharding = first.sharding
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        return jax.ShapeDtypeStruct((len(leaves), *first.shape), first.dtype, sharding=sharding)
    return np.stack(leaves) if isinstance(first, (np.ndarray, np.generic)) else jnp.stack(leaves)


def place_new(block: Any) -> None:
    """Shard the variables of a new stacked block according to their axis names."""
    for _, variable in iter_variables(block):
        cell = variable._cell
        if cell.metadata["eager_sharding"] and cell.metadata.get("out_sharding"):
            for place in eager_sharding_hooks:
                cell.raw = as_stored(place(variable, read(cell.raw)), cell.metadata)


def store_in_references(block: Any) -> None:
    """Store the values of a new stacked block in references."""
    for _, variable in iter_variables(block):
        cell = variable._cell
        cell.metadata = {**cell.metadata, "ref": True}
        cell.raw = as_stored(cell.raw, cell.metadata)


def over_layers(function: Callable[[Path, Any], Any], model: Any, parts: Sequence[tuple[Path, Any]]) -> list[Any]:
    """``function(path, value)`` for each part, called for each layer of one in a stack; its results are then stacked.

    The calls have the order that they have in a list, layer by layer, so that a function may draw.

    Args:
        model: the start of the paths.
        parts: path and value of each: a part of a model, or the value of a variable; in the order of a walk.

    Raises:
        ArgumentError: the results for the layers differ in structure.
        SharingError: the results for two layers contain the same variable.
    """
    paths = [path for path, _ in parts]
    sizes = [[len(layers) for layers in map(layers_of, path) if layers is not None] for path in paths]
    axes = [axes_along(model, path) for path in paths]
    found: list[list[Any]] = [[] for _ in parts]
    names: list[list[str]] = [[] for _ in parts]
    for number, path, index in in_list_order(paths):
        value = parts[number][1]
        for each in zip(index, sizes[number], axes[number], strict=True):
            value = _one_layer(value, *each)
        found[number].append(function(path, value))
        names[number].append(describe_path(path))
    return [*map(_together, found, names, axes, sizes)]


def _together(found: list[Any], names: list[str], axes: Sequence[str | None], sizes: Sequence[int]) -> Any:
    """The results of all layers, which are in the order of their indices, as one."""
    if not sizes:
        return found[0]
    count = len(found) // sizes[0]
    parts = [slice(start, start + count) for start in range(0, len(found), count)]
    found = [_together(found[part], names[part], axes[1:], sizes[1:]) for part in parts]
    names = names[::count]
    if kind_of(found[0]) is Kind.STATIC:
        odd = next((number for number, each in enumerate(found) if not same_static(each, found[0], exact=False)), None)
        if odd is not None:
            raise ArgumentError(
                "layers of a stack were given different settings",
                at=f"{names[0]} and {names[odd]}",
                found=f"{found[0]!r:.60} and {found[odd]!r:.60}",
                expected="one value for all layers of the stack",
                do="convert the stack to a list: plait.as_list(model)",
            )
        return found[0]
    return stacked(found, axes[0], names.__getitem__)


def _one_layer(value: Any, index: int, count: int, axis: str | None) -> Any:
    kind = kind_of(value)
    if kind is Kind.STATIC or value is None:
        return value
    return layer_of(value, index, count) if kind is Kind.ARRAY else layer_copy(value, index, count, axis)


hooks.after_walk = check_once
