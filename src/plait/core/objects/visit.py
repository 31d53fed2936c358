"""Visiting an object graph: the traversal for code that inspects a graph without flattening it. (G53)

``visit`` uses the order of the flatten walk: owners before their children, children in the order of their keys. An
object that occurs again is yielded again, with its first place, but not entered a second time, so cycles end. Paths are
computed on access. The stack is explicit, so deep graphs need no recursion. To stop early, leave the loop; to skip a
part, set ``place.enter`` to ``False`` in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import GraphError
from ...util.paths import Path
from .. import hooks
from .nodes import DataElem, Kind, StaticElem, get_node_impl, kind_of


class Place:
    """The position of a value in a graph.

    Attributes:
        owner: the place of the node that contains the value; ``None`` for the root.
        key: the value's key in its owner.
        value: the value, without the wrapper that forces its kind.
        kind: its kind; data that is not an array counts as an array.
        first: the first place of the same object if it occurred before, otherwise ``None``.
        enter: whether its children come next; a loop over ``visit`` may set it to ``False``.
    """

    __slots__ = ("enter", "first", "key", "kind", "owner", "value")

    def __init__(self, owner: Place | None, key: Any, value: Any) -> None:
        wrapper = type(value)
        if wrapper is DataElem or wrapper is StaticElem:
            value = value.value
        kind = kind_of(value)
        if wrapper is DataElem and kind is Kind.STATIC:
            kind = Kind.ARRAY
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
    """Whether walks compare a value by identity: graph nodes, variables and references. (G1)"""
    return kind is Kind.VARIABLE or kind is Kind.GRAPH or kind is Kind.REF


def children_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a node with their keys, in the order of the walk, as its type registered them."""
    impl = get_node_impl(node)
    return () if impl is None else impl.flatten(node)[0]


def children_if_any(node: Any) -> Iterable[tuple[Any, Any]]:
    """The same, or no children if the node cannot be walked; the walk itself raises the error."""
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
        is_shared: ``(value, kind) -> bool``: which values count as the same object at all places; other values are new
            each time, but for a plain container that contains itself, which is not entered again.
        children: returns the children of a node; it may omit nodes that cannot be entered.

    Raises:
        SharingError: a layer of a stack is in the graph twice. Not if other ``children`` are given, which is for code
            that looks at any graph, such as that of errors.
    """
    if children is children_of:
        check_walk(root)
    return places(root, is_shared, children)


def check_walk(root: Any) -> None:
    """Raise if a graph must not be walked.

    Raises:
        SharingError: a layer of a stack is in it twice; names both paths.
    """
    if hooks.after_walk is not None:
        hooks.after_walk(root, None)


def places(
    root: Any,
    is_shared: Callable[[Any, Kind], bool] = has_identity,
    children: Callable[[Any], Iterable[tuple[Any, Any]]] = children_of,
) -> Iterator[Place]:
    """``visit`` without the check."""
    met: dict[int, Place] = {}
    plain: dict[int, Place] = {}
    stack = [Place(None, None, root)]
    while stack:
        place = stack.pop()
        if is_shared(place.value, place.kind):
            first = met.setdefault(id(place.value), place)
            if first is not place:
                place.first, place.enter = first, False
        elif place.enter and plain.setdefault(id(place.value), place) is not place:  # shared, or in a cycle
            place.first = _same_above(place)
            place.enter = place.first is None
        yield place
        if place.enter:
            stack.extend(reversed([Place(place, key, child) for key, child in children(place.value)]))


def _same_above(place: Place) -> Place | None:
    """The place of the plain container that contains itself here; the walk refuses such a container."""
    owner = place.owner
    while owner is not None and owner.kind is Kind.PYTREE:
        if owner.value is place.value:
            return owner
        owner = owner.owner
    return None


def children_first(places: Iterable[Place]) -> Iterator[Place]:
    """The same places with children before their owners, the root last."""
    opened: list[Place] = []
    for place in places:
        while opened and opened[-1] is not place.owner:
            yield opened.pop()
        opened.append(place)
    yield from reversed(opened)


def iter_graph_nodes(root: Any) -> Iterator[tuple[Path, Any]]:
    """Every graph node below and including ``root``, once, at its first path; owners before their children."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.GRAPH and place.first is None)


def iter_variables(root: Any) -> Iterator[tuple[Path, Any]]:
    """Every variable below and including ``root``, once, at its first path, in the order of the walk."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.VARIABLE and place.first is None)
