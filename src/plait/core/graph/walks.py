"""Cached walks: what a crossing remembers about a graph between two calls.

A cached walk belongs to its first root, which holds it: a walk lives no longer than the graph it describes, and a
reference cycle that a user makes stays one that the garbage collector can see. It holds the interned graphdefs, the
cells of the variables, the stamps of all nodes and the contents of plain containers; never a root, so that dropping a
model frees it at once. What was taken out of a plain container is let go by the next walk. In a walk of several roots
each root holds the contents of its own containers, or the first would keep the others alive.

It is trusted while the structure clock stands still; re-stamped when the clock moved but none of its own stamps did;
made anew otherwise. Plain lists and dicts cannot tell when they change, so their elements are compared by identity on
every use. Graphs with nodes that can neither tell nor be compared are walked anew each time. (rules U33, U34)
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

from ..objects.clock import Stamp, clock
from ..objects.nodes import Kind, kind_of, pytree_impl
from ..objects.variables import Variable
from .flatten import Walk
from .graphdef import GraphDef, Link, path_of


class Constant:
    """Stands where a cell stands, for a leaf that is an array of its own."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw


class Contents:
    """The plain containers below one root, each with a copy of what it held."""

    __slots__ = ("__weakref__", "guard", "items")

    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        self.items = items

    def __call__(self) -> Contents:
        return self


class CachedWalk:
    """One or several roots, walked under one index.

    Attributes:
        graphdefs: one for each root.
        cells: of the variables, in walk order; arrays stand as constants.
        counts: how many of the leaves belong to each root.
        only_variables: whether every leaf is a variable.
        lists: the first root's plain lists of modules, each with a copy. Modules compare by identity, so ``!=`` on
            such a list is the comparison wanted, at the speed of C.
        runs: what jitted functions made for calls of this walk, by the number of the function (``dispatch.py``). The
            latest of each number also stands beside the walk, where a call finds it. They hold cells, not the walk.
    """

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.stamp = clock.now  # before the walk: a change made meanwhile moves the clock past it
        walk = Walk()
        graphdefs, counts = [], []
        # What each root holds in plain containers, as callables, because other roots than the first are held weakly.
        self.containers: list[Callable[[], Contents | None]] = []
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
                self.containers.append(Contents(contents))
                self.owners.append(place)
        self.graphdefs: tuple[GraphDef, ...] = tuple(graphdefs)
        self.counts = tuple(counts)
        self.cells: list[Any] = [leaf._cell if isinstance(leaf, Variable) else Constant(leaf) for leaf in walk.leaves]
        self.types: list[type | None] = [type(leaf) if isinstance(leaf, Variable) else None for leaf in walk.leaves]
        self.only_variables = None not in self.types
        self.links: list[Link] = walk.links
        self.stamps: list[Stamp] | None = walk.stamps
        self.versions = None if walk.stamps is None else [stamp.version for stamp in walk.stamps]
        self.others: tuple[Any, ...] = ()
        self.runs: dict[int, Any] = {}

    def is_current(self) -> bool:
        """Whether the graph is still as it was walked."""
        now = clock.now
        if self.stamp != now:
            stamps = self.stamps
            if stamps is None or [stamp.version for stamp in stamps] != self.versions:
                return False
            self.stamp = now
        return all(map(_unchanged, self.lists)) and containers_stand(self.containers)

    def hold_weakly(self, roots: tuple[Any, ...]) -> None:
        """Leave what other roots than the first hold to those roots, so that the first does not keep it alive."""
        for place, owner in enumerate(self.owners):
            contents = self.containers[place]()
            if owner and contents is not None:
                self.containers[place] = weakref.ref(contents)
                _hand_over(contents, roots[owner], self)

    def paths(self) -> list[tuple[Any, ...]]:
        """The path of each leaf."""
        return [path_of(link) for link in self.links]

    def raw_values(self) -> list[Any]:
        """The raw value of each leaf."""
        return [cell.raw for cell in self.cells]


def _compares_by_identity(container: tuple[Any, Any]) -> bool:
    """Whether ``==`` on a list asks no element but for its identity."""
    current, saved = container
    return type(current) is list and all(type(item).__eq__ is object.__eq__ for item in saved)


def containers_stand(containers: list[Callable[[], Contents | None]]) -> bool:
    """Whether plain containers still hold what they held."""
    for held in containers:
        contents = held()
        if contents is None or not all(map(_unchanged, contents.items)):
            return False
    return True


def _unchanged(container: tuple[Any, Any]) -> bool:
    """Whether a plain container still holds the same elements."""
    current, saved = container
    kind = type(current)
    if kind is list:
        return len(current) == len(saved) and all(map(operator.is_, current, saved))
    if kind is dict:
        return (
            len(current) == len(saved)
            and all(map(operator.eq, current, saved))
            and all(map(operator.is_, current.values(), saved.values()))
        )
    children = pytree_impl(kind).flatten(current)[0]
    return len(children) == len(saved) and all(
        key == old_key and child is old for (key, child), (old_key, old) in zip(children, saved, strict=True)
    )


def find_walk(roots: tuple[Any, ...]) -> CachedWalk:
    """The cached walk of these roots, or a new one, kept on the first root where that is possible."""
    first = roots[0]
    try:
        kept = first._walks
    except AttributeError:
        kept = None
    key = tuple(map(id, roots[1:]))
    if kept is not None:
        walk = kept.get(key)
        if walk is not None and walk.is_current() and _same_roots(walk.others, roots):
            return walk
        drop_walk(kept, key)
    walk = CachedWalk(roots)
    if walk.stamps is not None and kind_of(first) in (Kind.GRAPH, Kind.VARIABLE):
        try:
            walk.others = tuple(weakref.ref(root, _forget(weakref.ref(first), key)) for root in roots[1:])
            walk.hold_weakly(roots)
            if kept is None:
                object.__setattr__(first, "_walks", kept := {})
            kept[key] = walk
            _walked.add(first) if kind_of(first) is Kind.GRAPH else None
        except (AttributeError, TypeError):
            pass  # a root that can hold no walk, or cannot be referred to weakly
    return walk


def drop_walk(kept: dict[Any, Any], key: Any) -> None:
    """Forget a walk that a root keeps, and the runs that were made for it."""
    walk = kept.pop(key, None)
    if walk is not None:
        for number, run in list(walk.runs.items()):
            if kept.get(number) is run:
                kept.pop(number, None)


def drop_runs(root: Any, number: int) -> None:
    """Forget what one jitted function keeps on a root."""
    kept = root._walks
    kept.pop(number, None)
    for walk in list(kept.values()):
        if type(walk) is CachedWalk:
            walk.runs.pop(number, None)


def _hand_over(contents: Contents, root: Any, walk: CachedWalk) -> None:
    """Let the root hold its contents for as long as both it and the walk live."""
    key, owner = (Contents, id(contents)), weakref.ref(root)

    def callback(_: Any) -> None:
        living = owner()
        if living is not None:
            living._walks.pop(key, None)

    contents.guard = weakref.ref(walk, callback)
    if getattr(root, "_walks", None) is None:
        object.__setattr__(root, "_walks", {})
    root._walks[key] = contents


def _same_roots(others: tuple[Any, ...], roots: tuple[Any, ...]) -> bool:
    return all(ref() is root for ref, root in zip(others, roots[1:], strict=True))


def _forget(first: weakref.ref[Any], key: tuple[int, ...]) -> Callable[[Any], None]:
    """Drop a walk of several roots when one of the others dies."""

    def callback(_: Any, drop: Any = drop_walk) -> None:  # at the end of the interpreter, globals are gone
        owner = first()
        if owner is not None:
            drop(owner._walks, key)

    return callback


# Roots that hold a walk, for naming the path of an object in an error.
_walked: weakref.WeakSet[Any] = weakref.WeakSet()


def walked_roots() -> list[Any]:
    """The living roots that hold a walk."""
    while True:
        try:
            return list(_walked)
        except RuntimeError:  # another thread walked its first model just now
            continue
