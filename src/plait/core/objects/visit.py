"""The one way through an object graph, for whoever looks at it rather than takes it apart. (G53)

``visit`` goes in the order of the flatten walk: owners before what they own, children in the order of their keys. An
object that is met again is shown again, with the place where it was met first, and is not entered a second time, so
that cycles end. Paths are read off a place when they are asked for. The stack is explicit: depth costs no recursion.
Stopping early is leaving the loop, and a part is passed over by setting ``place.enter`` to ``False`` inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import GraphError
from ...paths import Path
from .nodes import DataElem, Kind, StaticElem, get_node_impl, kind_of


class Place:
    """Where a value stands in a graph.

    Attributes:
        owner: the place of the node that holds the value; ``None`` for the root.
        key: the value's key in its owner.
        value: the value, without the wrapper that forces its kind.
        kind: what it is; data that is no array counts as an array.
        first: the place where the same object was met before, or ``None``.
        enter: whether its children come next; a loop over ``visit`` may set it to ``False``.
    """

    __slots__ = ("enter", "first", "key", "kind", "owner", "value")

    def __init__(self, owner: Place | None, key: Any, value: Any) -> None:
        kind = kind_of(value)
        if kind is Kind.STATIC:
            if type(value) is DataElem:
                value = value.value
                kind = kind_of(value)
                kind = Kind.ARRAY if kind is Kind.STATIC else kind
            elif type(value) is StaticElem:
                value = value.value
                kind = kind_of(value)
        self.owner, self.key, self.value, self.kind = owner, key, value, kind
        self.first: Place | None = None
        self.enter = kind is Kind.GRAPH or (kind is Kind.PYTREE and value is not None)

    @property
    def path(self) -> Path:
        """The keys from the root to here."""
        keys = []
        place = self
        while place.owner is not None:
            keys.append(place.key)
            place = place.owner
        return tuple(reversed(keys))


def has_identity(value: Any, kind: Kind) -> bool:
    """Whether the walks follow the identity of a value: graph nodes, variables and references. (G1)"""
    return kind is Kind.VARIABLE or kind is Kind.GRAPH or kind is Kind.REF


def children_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a node with their keys, in the order of the walk, as its type registered them."""
    return get_node_impl(node).flatten(node)[0]  # type: ignore[union-attr]


def children_if_any(node: Any) -> Iterable[tuple[Any, Any]]:
    """The same, and none of a node that cannot be walked: its error belongs to whoever walks it."""
    try:
        return children_of(node)
    except GraphError:
        return ()


def visit(
    root: Any,
    *,
    is_shared: Callable[[Any, Kind], bool] = has_identity,
    children: Callable[[Any], Iterable[tuple[Any, Any]]] = children_of,
) -> Iterator[Place]:
    """Every place of a graph, owners first.

    Args:
        root: any value.
        is_shared: ``(value, kind) -> bool``: what is one object wherever it stands; other values are new each time.
        children: how a node is opened; it may leave out what cannot be opened.
    """
    met: dict[int, Place] = {}
    stack = [Place(None, None, root)]
    while stack:
        place = stack.pop()
        if is_shared(place.value, place.kind):
            first = met.setdefault(id(place.value), place)
            if first is not place:
                place.first, place.enter = first, False
        yield place
        if place.enter:
            stack.extend(reversed([Place(place, key, child) for key, child in children(place.value)]))


def children_first(places: Iterable[Place]) -> Iterator[Place]:
    """The same places with children before their owners, the root last."""
    opened: list[Place] = []
    for place in places:
        while opened and opened[-1] is not place.owner:
            yield opened.pop()
        opened.append(place)
    yield from reversed(opened)


def iter_graph_nodes(root: Any) -> Iterator[tuple[Path, Any]]:
    """Every graph node below and including ``root``, once, at its first path; owners before what they own."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.GRAPH and place.first is None)


def iter_variables(root: Any) -> Iterator[tuple[Path, Any]]:
    """Every variable below and including ``root``, once, at its first path, in the order of the walk."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.VARIABLE and place.first is None)
