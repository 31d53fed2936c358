"""The slow, obvious twins of fast paths: what a graph looks like, seen through nothing but Python's own attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plait
from plait.core.graph.graphdef import NodeDef, NodeRef, StaticAttribute, VariableDef
from plait.graph import get_node_impl_for_type


def describe(*roots: Any) -> list[Any]:
    """Everything that matters about some objects, as nested plain data that compares with ``==``.

    Objects with identity (modules, variables) are numbered at their first visit and show as ``("same", number)`` after
    that, so two descriptions are equal exactly if types, static values, metadata, values, sharing and cycles are.
    """
    numbers: dict[int, int] = {}
    kept: list[Any] = []

    def visit(value: Any) -> Any:
        if isinstance(value, (plait.Pytree, plait.Variable)):
            if id(value) in numbers:
                return ("same", numbers[id(value)])
            numbers[id(value)] = len(numbers)
            kept.append(value)
        if isinstance(value, plait.Variable):
            metadata = sorted((name, repr(item)) for name, item in value.get_metadata().items())
            return (type(value).__name__, visit(value.get_raw_value()), metadata)
        if isinstance(value, plait.Pytree):
            return (type(value).__name__, [(key, visit(child)) for key, child in children(value)])
        if isinstance(value, (jax.Array, np.ndarray)):
            return describe_array(value)
        if isinstance(value, (list, tuple, dict, plait.State)) or dataclasses.is_dataclass(value):
            return (type(value).__name__, [(key, visit(child)) for key, child in children(value)])
        return (type(value).__name__, repr(value))

    return [visit(root) for root in roots]


def describe_array(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return ("key", np.asarray(jax.random.key_data(value)).tolist())
    return ("array", str(value.dtype), value.shape, np.asarray(value).tolist())


def children(node: Any) -> list[tuple[Any, Any]]:
    """The children of a node in the order that paths sort: integers first, then names."""
    if isinstance(node, plait.List):
        return [*enumerate(node), *sorted(vars(node).items())]
    if isinstance(node, plait.Pytree):
        return sorted(vars(node).items())
    if isinstance(node, (dict, plait.State)):
        return sorted(node.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return sorted(zip(node._fields, node, strict=True))
    if isinstance(node, (list, tuple)):
        return list(enumerate(node))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return sorted((field.name, getattr(node, field.name)) for field in dataclasses.fields(node))
    return []


def walk(*roots: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every object and leaf with its first path, owners before what they own; the paths start with the root's place."""
    seen: dict[int, Any] = {}
    stack: list[tuple[tuple[Any, ...], Any]] = [((place,), root) for place, root in reversed(list(enumerate(roots)))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, (plait.Pytree, plait.Variable)):
            if id(value) in seen:
                continue
            seen[id(value)] = value
        yield path, value
        stack.extend(((*path, key), child) for key, child in reversed(children(value)))


def modules(*roots: Any) -> list[Any]:
    """The modules of some graphs, in walk order."""
    return [value for _, value in walk(*roots) if isinstance(value, plait.Pytree)]


def variables(*roots: Any) -> list[Any]:
    """The variables of some graphs, in walk order."""
    return [value for _, value in walk(*roots) if isinstance(value, plait.Variable)]


def leaves(*roots: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Variables and arrays with their first path below their root."""
    return [
        (path[1:], value) for path, value in walk(*roots) if isinstance(value, (plait.Variable, jax.Array, np.ndarray))
    ]


def assert_same_graph(first: Any, second: Any) -> None:
    """Two graphs have the same types, static values, metadata, values, sharing and cycles."""
    assert describe(first) == describe(second)


def rebuilt(graphdef: Any, leaves: Any, built: dict[int, Any] | None = None) -> Any:
    """The graph of a graphdef, node by node in the order of rules G26 to G28, through the registered callbacks."""
    supply = iter(leaves)
    built = {} if built is None else built

    def make(part: Any) -> Any:
        if isinstance(part, NodeRef):
            return built[part.index]
        if not isinstance(part, NodeDef):
            leaf = next(supply)
            if isinstance(part, VariableDef) and not isinstance(leaf, plait.Variable):
                leaf = part.type.from_metadata(leaf, part.metadata)
            if part.index is not None:
                built[part.index] = leaf
            return leaf
        impl: Any = get_node_impl_for_type(part.type)
        node = None
        if part.index is not None:
            node = built[part.index] = impl.create_empty(part.metadata)
        below = [
            (entry.key, entry.value if isinstance(entry, StaticAttribute) else make(entry.value))
            for entry in part.attributes
        ]
        if part.index is None:
            return impl.unflatten(below, part.metadata)
        impl.init(node, below)
        return node

    return make(graphdef)


def updated(node: Any, state: Any) -> None:
    """Write each variable of a state to the one that its path leads to, alone."""
    for path, leaf in state.flat_state():
        target = node
        for key in path:
            target = dict(children(target))[key]
        target.update_from_state(leaf)
