"""The first of the two walks: from an object graph to its graphdef and leaves.

The walk is depth-first and pre-order, with an explicit stack, so deep graphs need no recursion. A graph node gets its
index before its children are visited, a variable or reference when it is visited; both use the same counter. An object
that was visited before becomes a back-reference and adds no leaf. This keeps cycles finite and preserves sharing
exactly. (rules G19 to G24)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from ...util.paths import format_path
from .. import hooks
from ..objects.attributes import contains_itself
from ..objects.cells import metadata_key
from ..objects.clock import Stamp, mark_seen
from ..objects.nodes import (
    _KINDS,
    GRAPH_REGISTRY,
    PYTREE_REGISTRY,
    DataElem,
    GenericPytree,
    Kind,
    StaticElem,
    _classify,
    pytree_impl,
)
from ..objects.state import State, tracking_of
from ..objects.statics import closures_in
from .graphdef import (
    GraphDef,
    Link,
    leaf_attribute,
    leaf_def,
    node_def,
    node_ref,
    path_of as path_of,
    static_attribute,
    sub_graph_attribute,
    variable_def,
)


class RefMap(MutableMapping[Any, Any]):
    """A mapping that compares keys by identity and keeps them alive; iterates in insertion order.

    Example:
        >>> refs = plait.graph.RefMap()
        >>> refs[[]] = 0
        >>> [] in refs, len(refs)
        (False, 1)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Any = (), /) -> None:
        self._items: dict[int, tuple[Any, Any]] = {}
        self.update(items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[id(key)][1]

    def get(self, key: Any, default: Any = None) -> Any:
        found = self._items.get(id(key))
        return default if found is None else found[1]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[id(key)] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"RefMap({len(self)} objects)"

    # Outside of a transform, a walk gives every object a number, the outer index. Inside, private objects are created
    # with the same numbers. When they are walked again, each object that is still reachable gets a new index. The pairs
    # of old and new index are all that has to be returned. (rules U8 to U14)

    def moved_from(self, inner: Mapping[int, Any]) -> dict[int, int]:
        """Outer index → index here, for the private objects that are here."""
        return {outer: number for outer, item in inner.items() if (number := self.get(item)) is not None}

    def objects_at(self, moved: Mapping[int, int]) -> dict[int, Any]:
        """New index → the object with that outer index here, for a builder to refill."""
        objects = {index: item for item, index in self.items()}
        return {new: objects[old] for old, new in moved.items()}


class Walk:
    """The result of one or several walks with a shared index, in order.

    Args:
        refs: the objects of earlier walks, which become back-references.
        names: returns the names of the roots, for errors.

    Attributes:
        refs: object → index.
        leaves: variables, references, arrays and data leaves.
        links: the first position of each leaf.
        stamps: those of every graph node and variable; ``None`` if some node does not record its changes.
        versions: those of the stamps, from before the walk read the objects.
        containers: mutable plain containers, each with a copy of its contents; also functions with a closure, and that
            with which they are equal (``statics.closures_in``).
        closures: static functions with a closure, each with its position.
        roots: how many roots were walked.
        noted: what ``hooks.after_walk`` keeps from root to root.
    """

    def __init__(self, refs: RefMap | None = None, names: Callable[[], Sequence[str]] | None = None) -> None:
        self.refs = RefMap() if refs is None else refs
        self.leaves: list[Any] = []
        self.links: list[Link] = []
        self.stamps: list[Stamp] | None = []
        self.versions: list[int] = []
        self.containers: list[tuple[Any, Any]] = []
        self.closures: list[tuple[FunctionType, Link]] = []
        self._latest_state: Stamp | None = None
        self.names = names
        self.roots = 0
        self.noted: Any = None

    def add(self, root: Any, link: Link = None) -> GraphDef:
        """Walk one root. Returns its graphdef, and appends to leaves, links and the other attributes.

        Raises:
            SharingError: the walk met a layer of a stack twice; names both paths.
        """
        kind = _KINDS.get(type(root)) or _classify(root)
        if kind is not Kind.GRAPH and kind is not Kind.PYTREE:
            graphdef = self._add_leaf(root, kind, link)
        else:
            seen = self.refs.get(root) if kind is Kind.GRAPH else None
            graphdef = self._add_node(root, kind, link) if seen is None else node_ref(type(root), seen)
        if hooks.after_walk is not None:
            hooks.after_walk(root, self)
        self.roots += 1
        return graphdef

    def _add_leaf(self, leaf: Any, kind: Kind, link: Link) -> GraphDef:
        """Add a variable, reference or array; one that was visited before becomes a back-reference."""
        definition: GraphDef = _ARRAY
        if kind is Kind.VARIABLE or kind is Kind.REF:
            by_id = self.refs._items
            known = by_id.get(id(leaf))
            if known is not None:
                return node_ref(type(leaf), known[1])
            number = len(by_id)
            by_id[id(leaf)] = (leaf, number)
            if kind is Kind.VARIABLE:
                cell = leaf._cell
                self._mark(cell)
                definition = variable_def(type(leaf), number, metadata_key(cell))
            else:
                definition = leaf_def(number)
        self.leaves.append(leaf)
        self.links.append(link)
        return definition

    def _mark(self, stamp: Stamp) -> None:
        version = mark_seen(stamp)
        if self.stamps is not None:
            self.stamps.append(stamp)
            self.versions.append(version)

    def _open(self, node: Any, kind: Kind, link: Link) -> tuple[Any, ...]:
        """Start a node: (type, index, metadata, iterator of children, entries so far, link, node)."""
        cls = type(node)
        if kind is Kind.GRAPH:
            impl = GRAPH_REGISTRY[cls]
            index = len(self.refs)
            self.refs[node] = index
            if impl.stamp is None:
                self.stamps = None
            else:
                self._mark(impl.stamp(node))
            children, metadata = impl.flatten(node)
            return cls, index, metadata, iter(children), [], link, node
        pytree = pytree_impl(cls)
        is_state = isinstance(node, State)
        if is_state:
            self._open_state(node)
        children, metadata = pytree.flatten(node)
        if cls is list or cls is dict:
            self.containers.append((node, node.copy()))
        elif not is_state and node is not None and not isinstance(node, _UNCHANGING):
            self.containers.append((node, [*children]))
        kept = cls if cls in PYTREE_REGISTRY else GenericPytree
        return kept, None, metadata, iter(children), [], link, node

    def _open_state(self, state: State) -> None:
        """Record a state: by its stamp, which its views share, or else by the contents of its dict."""
        tracking = tracking_of(state)
        if tracking is None:  # its children are views, created on each access
            self.containers.append((state._mapping, state._mapping.copy()))
        elif tracking is not self._latest_state:
            self._latest_state = tracking
            self._mark(tracking)

    def _add_node(self, root: Any, kind: Kind, link: Link) -> GraphDef:
        known_of = self.refs._items.get
        kinds = _KINDS
        stack: list[tuple[Any, tuple[Any, ...]]] = []
        plain: set[int] = set()  # the plain containers inside others
        key_in_parent: Any = None
        frame = self._open(root, kind, link)
        while True:
            cls, index, metadata, children, entries, link, _ = frame
            for key, child in children:
                child_type = type(child)
                kind = kinds.get(child_type) or _classify(child)
                if kind is Kind.STATIC:
                    if child_type is DataElem:
                        child = child.value
                        kind = kinds.get(type(child)) or _classify(child)
                        if kind is Kind.STATIC:
                            kind = Kind.ARRAY
                    else:
                        value = child.value if child_type is StaticElem else child
                        entry = static_attribute(key, value)
                        if entry._key is None:
                            self.stamps = None  # it may change in place, and the change cannot be detected
                        entries.append(entry)
                        if entry.has_closures:
                            self.containers += closures_in((value, entry.value))
                        if child_type is FunctionType and child.__closure__ is not None:
                            self.closures.append((child, (link, key)))
                        continue
                if kind is not Kind.GRAPH and kind is not Kind.PYTREE:
                    entries.append(leaf_attribute(key, self._add_leaf(child, kind, (link, key))))
                elif child is None:
                    entries.append(sub_graph_attribute(key, _NONE))
                elif kind is Kind.GRAPH and (known := known_of(id(child))) is not None:
                    entries.append(sub_graph_attribute(key, node_ref(type(child), known[1])))
                else:
                    stack.append((key_in_parent, frame))
                    if kind is Kind.PYTREE and index is None:
                        if id(child) in plain:  # it is shared, or in a cycle
                            _check_no_cycle(child, stack, (link, key))
                        plain.add(id(child))
                    key_in_parent = key
                    frame = self._open(child, kind, (link, key))
                    break
            else:
                definition = node_def(cls, index, tuple(entries), metadata)
                if not stack:
                    return definition
                key = key_in_parent
                key_in_parent, frame = stack.pop()
                frame[4].append(sub_graph_attribute(key, definition))


def _check_no_cycle(child: Any, stack: Sequence[tuple[Any, tuple[Any, ...]]], link: Link) -> None:
    """Raise for a plain container that contains itself: it has no identity, so the walk would never end."""
    for _, (_, index, _, _, _, _, node) in reversed(stack):
        if index is not None:
            return
        if node is child:
            raise contains_itself(child, format_path(path_of(link)))


_UNCHANGING = tuple, MethodType, functools.partial  # tuples may be named
_ARRAY = leaf_def()
_NONE = node_def(type(None), None, (), None)
