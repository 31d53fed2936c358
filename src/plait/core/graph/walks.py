"""The first of the two walks, from an object graph to its graphdef and leaves; and its cache.

The walk is depth-first and pre-order, with an explicit stack, so deep graphs need no recursion. A graph node gets its
index before its children are visited, a variable or reference when it is visited; both use the same counter. An object
that was visited before becomes a back-reference and adds no leaf. This keeps cycles finite and preserves sharing
exactly. (rules G19 to G24)

**A cached walk** is what transforms remember about a graph between two calls. It is stored on its first root. So a walk
lives no longer than its graph, and reference cycles in a user's model remain visible to the garbage collector. It
references the interned graphdefs, the cells of the variables, the stamps of all nodes and the contents of plain
containers, but never a root, so dropping a model frees it at once. An object that was removed from a plain container is
released by the next walk. In a walk of several roots each root stores the contents of its own containers; otherwise the
first would keep the others alive.

A cached walk is valid while the structure clock has not advanced. If the clock advanced but none of the walk's own
stamps did, the walk gets a new time; otherwise the graph is walked again. Plain lists and dicts do not record changes,
so their elements are compared by identity on every use. Graphs with nodes that neither record changes nor can be
compared are walked every time. (rules U33, U34)
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from ...core import hooks
from ...errors import CapturedModelWarning
from ...typing import Node, Value
from ...util.jax_versions import top_level_trace, trace_state
from ...util.notices import warn
from ...util.paths import Path, format_path
from ...util.static_values import HashableMapping, closure_contents, closures_in, contents_of
from ...util.words import with_article
from ..nodes.attributes import contains_itself
from ..nodes.nodes import (
    _KINDS,
    GRAPH_REGISTRY,
    PYTREE_REGISTRY,
    DataElem,
    GenericPytree,
    Kind,
    StaticElem,
    _classify,
    kind_of,
    pytree_impl,
)
from ..nodes.pytree import Pytree
from ..states.state import State, tracking_of
from ..variables.cells import Stamp, clock, mark_seen, metadata_key, note_foreign_reads
from ..variables.variables import Variable
from .graphdef import (
    GraphDef,
    Link,
    leaf_attribute,
    leaf_def,
    node_def,
    node_ref,
    path_of,
    static_attribute,
    sub_graph_attribute,
    variable_def,
)

# A plain container, and a copy of its contents; a function, and what it closes over; or an object of plait's, and what
# a walk reads of it.
Contents = tuple[Any, Any]

# A node whose children are being visited: (type, index, metadata, children, entries so far, link, node).
_Frame = tuple[type, int | None, Any, Iterator[tuple[Hashable, Value]], list[Any], Link, Node]


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
        self._items: dict[int, tuple[Node, Any]] = {}
        self.update(items)

    def __getitem__(self, key: object) -> Any:
        return self._items[id(key)][1]

    def get(self, key: object, default: Any = None) -> Any:
        found = self._items.get(id(key))
        return default if found is None else found[1]

    def __setitem__(self, key: object, value: object) -> None:
        self._items[id(key)] = (key, value)

    def __delitem__(self, key: object) -> None:
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

    def agrees(self, inner: Mapping[int, object]) -> bool:
        """Whether each of the private objects has its number here, and there are no others."""
        get = self._items.get
        return len(self._items) == len(inner) and all(
            (found := get(id(item))) is not None and found[1] == outer for outer, item in inner.items()
        )

    def moved_from(self, inner: Mapping[int, object]) -> dict[int, int]:
        """Outer index → index here, for the private objects that are here."""
        return {outer: number for outer, item in inner.items() if (number := self.get(item)) is not None}

    def objects_at(self, moved: Mapping[int, int]) -> dict[int, Node]:
        """New index → the object with that outer index here, for a builder to refill."""
        objects = {index: item for item, index in self.items()}
        return {new: objects[old] for old, new in moved.items()}


class Walk:
    """The result of one or several walks with a shared index, in order.

    Args:
        refs: the objects of earlier walks, which become back-references.
        names: returns the names of the roots, for errors.
        exact: as for ``static_key``.

    Attributes:
        refs: object → index.
        leaves: variables, references, arrays and data leaves.
        links: the first position of each leaf.
        stamps: those of every graph node and variable; ``None`` if some node does not record its changes.
        versions: those of the stamps, from before the walk read the objects.
        containers: mutable plain containers, each with a copy of its contents; also functions with a closure, and that
            with which they are equal (``statics.closures_in``).
        closures: static functions with a closure, each with its position.
        ends: how many leaves there were after each root.
    """

    def __init__(
        self,
        refs: RefMap | None = None,
        names: Callable[[], Sequence[str]] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self.refs, self.exact = RefMap() if refs is None else refs, exact
        self.leaves: list[Value] = []
        self.links: list[Link] = []
        self.stamps: list[Stamp] | None = []
        self.versions: list[int] = []
        self.containers: list[Contents] = []
        self.closures: list[tuple[FunctionType, Link]] = []
        self._latest_state: Stamp | None = None
        self.names = names
        self.ends: list[int] = []

    def add(self, root: Node, link: Link = None) -> GraphDef:
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
        self.ends.append(len(self.leaves))
        return graphdef

    def _add_leaf(self, leaf: Value, kind: Kind, link: Link) -> GraphDef:
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

    def _open(self, node: Node, kind: Kind, link: Link) -> _Frame:
        """Start a node."""
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
            self.containers.append(read_contents(node))
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

    def _add_node(self, root: Node, kind: Kind, link: Link) -> GraphDef:
        known_of = self.refs._items.get
        kinds = _KINDS
        stack: list[tuple[Hashable, _Frame]] = []
        plain: set[int] = set()  # the plain containers inside others
        key_in_parent: Hashable = None
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
                        entry = static_attribute(key, value, exact=self.exact)
                        if entry._key is None:
                            self.stamps = None  # it may change in place, and the change cannot be detected
                        entries.append(entry)
                        if entry.has_closures:
                            self.containers += closures_in(value)
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


def _check_no_cycle(child: object, stack: Sequence[tuple[Hashable, _Frame]], link: Link) -> None:
    """Raise for a plain container that contains itself: it has no identity, so the walk would never end."""
    for _, (_, index, _, _, _, _, node) in reversed(stack):
        if index is not None:
            return
        if node is child:
            raise contains_itself(child, format_path(path_of(link)))


_UNCHANGING = tuple, MethodType, functools.partial, HashableMapping  # tuples may be named
_ARRAY = leaf_def()
_NONE = node_def(type(None), None, (), None)


# Walks that a root keeps: with itself alone, and with the roots that it was passed with. The oldest go first.
_KEPT = 32


class ArrayCell:
    """Takes the place of a cell, for a leaf that is a plain array."""

    __slots__ = ("raw",)

    def __init__(self, raw: Value) -> None:
        self.raw = raw


class ContainerCopies:
    """The plain containers below one root, each with a copy of its contents."""

    __slots__ = ("__weakref__", "guard", "items")

    def __init__(self, items: list[Contents]) -> None:
        self.items = items

    def __call__(self) -> ContainerCopies:
        return self


class CachedWalk:
    """One or several roots, walked with one index.

    Args:
        names: returns the names of the roots, for errors.

    Attributes:
        graphdefs: one for each root.
        cells: the cells of the variables in walk order; arrays are ``ArrayCell``s.
        counts: how many of the leaves belong to each root.
        only_variables: whether every leaf is a variable.
        lists: the first root's plain lists of modules, each with a copy. Modules compare by identity, so ``!=`` on such
            a list does the right comparison, at the speed of C.
        runs: functions that jitted functions generated for calls with this walk, by the number of the jitted function
            (``dispatch.py``). The latest of each number is also stored next to the walk, where a call finds it. They
            reference cells, not the walk.
    """

    def __init__(self, roots: tuple[Node, ...], names: Callable[[], Sequence[str]] | None = None) -> None:
        self.stamp = clock.now  # before the walk, so a concurrent change makes this time outdated
        walk = Walk(names=names)
        graphdefs, counts = [], []
        # The contents of plain containers per root, as callables, because all roots except the first are referenced
        # weakly.
        self.containers: list[Callable[[], ContainerCopies | None]] = []
        self.owners: list[int] = []
        self.lists: list[tuple[list[Any], list[Any]]] = []
        for place, root in enumerate(roots):
            before, met = len(walk.leaves), len(walk.containers)
            graphdefs.append(walk.add(root))
            counts.append(len(walk.leaves) - before)
            contents = walk.containers[met:]
            if place == 0:
                self.lists = [pair for pair in contents if _compares_by_identity(pair)]
                contents = [pair for pair in contents if not _compares_by_identity(pair)]
            if contents:
                self.containers.append(ContainerCopies(contents))
                self.owners.append(place)
        if walk.closures:
            warn_about_closures(walk)
        self.graphdefs: tuple[GraphDef, ...] = tuple(graphdefs)
        self.counts = tuple(counts)
        self.cells: list[Any] = [leaf._cell if isinstance(leaf, Variable) else ArrayCell(leaf) for leaf in walk.leaves]
        self.types: list[type | None] = [type(leaf) if isinstance(leaf, Variable) else None for leaf in walk.leaves]
        self.only_variables = None not in self.types
        self.links: list[Link] = walk.links
        self.stamps: list[Stamp] | None = walk.stamps
        self.versions = walk.versions
        self.others: tuple[weakref.ref[Node], ...] = ()
        self.runs: dict[int, Any] = {}

    def is_current(self) -> bool:
        """Whether the graph has not changed since the walk."""
        now = clock.now
        if self.stamp != now:
            stamps = self.stamps
            if stamps is None or [stamp.version for stamp in stamps] != self.versions:
                return False
            self.stamp = now
        return are_unchanged(self.lists) and containers_unchanged(self.containers)

    def weaken_other_roots(self, roots: tuple[Node, ...]) -> None:
        """Let each root other than the first store its own contents, so that the first does not keep them alive."""
        for place, owner in enumerate(self.owners):
            contents = self.containers[place]()
            if owner and contents is not None:
                self.containers[place] = weakref.ref(contents)
                _store_contents_on(contents, roots[owner], self)

    def paths(self) -> list[Path]:
        """The path of each leaf."""
        return [path_of(link) for link in self.links]

    def raw_values(self) -> list[Value]:
        """The raw value of each leaf."""
        if trace_state.value is not top_level_trace:
            note_foreign_reads(self.cells)
        return [cell.raw for cell in self.cells]


def _compares_by_identity(container: Contents) -> bool:
    """Whether ``==`` on a list compares all elements by identity."""
    current, saved = container
    return type(current) is list and all(type(item).__eq__ is object.__eq__ for item in saved)


def containers_unchanged(containers: list[Callable[[], ContainerCopies | None]]) -> bool:
    """Whether plain containers still have the same contents."""
    for held in containers:
        contents = held()
        if contents is None or not are_unchanged(contents.items):
            return False
    return True


def elements_of(node: Pytree) -> list[Value]:
    """The elements of a ``List``; other nodes have attributes only."""
    return getattr(node, "_pytree__elements", _NO_ELEMENTS)


_NO_ELEMENTS: list[Value] = []


def read_contents(thing: Node) -> Contents:
    """An object of plait's, list or dict with what a walk reads of it, to be compared later."""
    if isinstance(thing, Pytree):
        marks = thing._pytree__info.marks
        return thing, (vars(thing).copy(), elements_of(thing).copy(), dict(marks) if marks else None)
    return thing, thing.copy()


def are_unchanged(contents: Iterable[Contents]) -> bool:
    """Whether a walk would read the same."""
    return all(map(_unchanged, contents))


def _unchanged(container: Contents) -> bool:
    """Whether something still has the same contents."""
    current, saved = container
    kind = type(current)
    if kind is list:
        return len(current) == len(saved) and all(map(operator.is_, current, saved))
    if kind is dict:
        same_keys = len(current) == len(saved) and all(map(operator.eq, current, saved))
        return same_keys and all(map(operator.is_, current.values(), saved.values()))
    if kind is FunctionType:
        contents = contents_of(current)
        return len(contents) == len(saved) and all(map(operator.is_, contents, saved))
    if isinstance(current, Pytree):
        attributes, elements, marks = saved
        return (
            _unchanged((vars(current), attributes))
            and _unchanged((elements_of(current), elements))
            and (current._pytree__info.marks or None) == marks
        )
    children = pytree_impl(kind).flatten(current)[0]
    return len(children) == len(saved) and all(
        key == old_key and child is old for (key, child), (old_key, old) in zip(children, saved, strict=True)
    )


def find_walk(roots: tuple[Node, ...], names: Callable[[], Sequence[str]] | None = None) -> CachedWalk:
    """The cached walk of these roots, or a new one, cached on the first root if possible.

    Args:
        names: returns the names of the roots, for errors.

    Raises:
        SharingError: a layer of a stack is in the roots twice.
    """
    first = roots[0]
    if trace_state.value is not top_level_trace:
        note_foreign_reads([root._pytree__info for root in roots if isinstance(root, Pytree)])
    kept = getattr(first, "_pytree__walks", None)
    key = tuple(map(id, roots[1:]))
    if kept is not None:
        walk = kept.get(key)
        if walk is not None and walk.is_current() and _same_roots(walk.others, roots):
            return walk
        drop_walk(kept, key)
    walk = CachedWalk(roots, names)
    if walk.stamps is not None and kind_of(first) in (Kind.GRAPH, Kind.VARIABLE):
        try:
            walk.others = tuple(weakref.ref(root, _forget(weakref.ref(first), key)) for root in roots[1:])
            walk.weaken_other_roots(roots)
            if kept is None:
                object.__setattr__(first, "_pytree__walks", kept := {})
            kept[key] = walk
            walks = [each for each, value in kept.items() if type(value) is CachedWalk]
            for each in walks[:-_KEPT]:
                drop_walk(kept, each)
            _walked.add(first) if kind_of(first) is Kind.GRAPH else None
        except (AttributeError, TypeError):
            pass  # a root that cannot store a walk, or has no weak references
    return walk


def drop_walk(kept: dict[Hashable, Any], key: Hashable) -> None:
    """Remove a cached walk or contents from a root, and the runs that were generated for the walk."""
    walk = kept.pop(key, None)
    if type(walk) is CachedWalk:
        for number, run in list(walk.runs.items()):
            if kept.get(number) is run:
                kept.pop(number, None)


def drop_runs(root: Node, number: int) -> None:
    """Remove what one jitted function has cached on a root."""
    kept = root._pytree__walks
    kept.pop(number, None)
    for walk in list(kept.values()):
        if type(walk) is CachedWalk:
            walk.runs.pop(number, None)


def _store_contents_on(contents: ContainerCopies, root: Node, walk: CachedWalk) -> None:
    """Let the root store its contents as long as both the root and the walk exist."""
    key = ContainerCopies, id(contents)
    contents.guard = weakref.ref(walk, _forget(weakref.ref(root), key))
    if getattr(root, "_pytree__walks", None) is None:
        object.__setattr__(root, "_pytree__walks", {})
    root._pytree__walks[key] = contents


def _same_roots(others: tuple[weakref.ref[Node], ...], roots: tuple[Node, ...]) -> bool:
    return all(ref() is root for ref, root in zip(others, roots[1:], strict=True))


def _forget(root: weakref.ref[Node], key: tuple[Hashable, ...]) -> Callable[[object], None]:
    """Drop what a root stores when something else dies: a walk with that root, or the contents for that walk."""

    def callback(_: object, drop: Callable[..., None] = drop_walk) -> None:  # at interpreter shutdown, globals are gone
        owner = root()
        if owner is not None:
            drop(owner._pytree__walks, key)

    return callback


# Roots with a cached walk, to find the path of an object for an error.
_walked: weakref.WeakSet[Node] = weakref.WeakSet()


def walked_roots() -> list[Node]:
    """The existing roots that have a cached walk."""
    while True:
        try:
            return list(_walked)
        except RuntimeError:  # another thread is walking its first model
            continue


# Functions that were warned about.
_told: weakref.WeakSet[FunctionType] = weakref.WeakSet()


def warn_about_closures(walk: Walk) -> None:
    """Warn, once for each function, that a static function of a graph closes over a node of that graph.

    Warns:
        CapturedModelWarning: names the attribute, and what it closes over.
    """
    for function, link in walk.closures:
        for name, value in zip(function.__code__.co_freevars, closure_contents(function), strict=True):
            if isinstance(value, (Pytree, Variable)) and value in walk.refs and function not in _told:
                _told.add(function)
                path = path_of(link)
                warn(
                    CapturedModelWarning,
                    "a function in an attribute closes over a part of its own model",
                    at=format_path(path),
                    found=f"{function.__name__!r}, whose {name!r} is {with_article(type(value).__name__)} of it; "
                    "in transforms and clones it uses the original, with its old values",
                    expected="a function that takes what it uses, or a method, whose owner is replaced with the model",
                    do=f"bind it: self.{path[-1]} = functools.partial(function, {name})",
                )


def is_graph_leaf(x: object) -> bool:
    """Whether the flattening of arguments stops here: a graph node or a variable."""
    return isinstance(x, (Pytree, Variable)) or type(x) in GRAPH_REGISTRY
