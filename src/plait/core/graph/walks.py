"""Cached walks: what transforms remember about a graph between two calls.

A cached walk is stored on its first root. So a walk lives no longer than its graph, and reference cycles in a user's
model remain visible to the garbage collector. It references the interned graphdefs, the cells of the variables, the
stamps of all nodes and the contents of plain containers, but never a root, so dropping a model frees it at once. An
object that was removed from a plain container is released by the next walk. In a walk of several roots each root stores
the contents of its own containers; otherwise the first would keep the others alive.

A cached walk is valid while the structure clock has not advanced. If the clock advanced but none of the walk's own
stamps did, the walk gets a new time; otherwise the graph is walked again. Plain lists and dicts do not record changes,
so their elements are compared by identity on every use. Graphs with nodes that neither record changes nor can be
compared are walked every time. (rules U33, U34)
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ...errors import CapturedModelWarning
from ...util.jax_versions import top_level_trace, trace_state
from ...util.notices import warn
from ...util.paths import format_path
from ...util.words import with_article
from ..objects.clock import Stamp, clock
from ..objects.foreign_reads import note_foreign_reads
from ..objects.nodes import Kind, kind_of, pytree_impl
from ..objects.pytree import Pytree
from ..objects.statics import closure_contents
from ..objects.variables import Variable
from .flatten import Walk
from .graphdef import GraphDef, Link, path_of

# Walks that a root keeps: with itself alone, and with the roots that it was passed with. The oldest go first.
_KEPT = 32


class ArrayCell:
    """Takes the place of a cell, for a leaf that is a plain array."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw


class ContainerCopies:
    """The plain containers below one root, each with a copy of its contents."""

    __slots__ = ("__weakref__", "guard", "items")

    def __init__(self, items: list[tuple[Any, Any]]) -> None:
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

    def __init__(self, roots: tuple[Any, ...], names: Callable[[], Sequence[str]] | None = None) -> None:
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
        self.others: tuple[Any, ...] = ()
        self.runs: dict[int, Any] = {}

    def is_current(self) -> bool:
        """Whether the graph has not changed since the walk."""
        now = clock.now
        if self.stamp != now:
            stamps = self.stamps
            if stamps is None or [stamp.version for stamp in stamps] != self.versions:
                return False
            self.stamp = now
        return all(map(_unchanged, self.lists)) and containers_stand(self.containers)

    def hold_weakly(self, roots: tuple[Any, ...]) -> None:
        """Let each root other than the first store its own contents, so that the first does not keep them alive."""
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
        if trace_state.value is not top_level_trace:
            note_foreign_reads(self.cells)
        return [cell.raw for cell in self.cells]


def _compares_by_identity(container: tuple[Any, Any]) -> bool:
    """Whether ``==`` on a list compares all elements by identity."""
    current, saved = container
    return type(current) is list and all(type(item).__eq__ is object.__eq__ for item in saved)


def containers_stand(containers: list[Callable[[], ContainerCopies | None]]) -> bool:
    """Whether plain containers still have the same contents."""
    for held in containers:
        contents = held()
        if contents is None or not all(map(_unchanged, contents.items)):
            return False
    return True


def _unchanged(container: tuple[Any, Any]) -> bool:
    """Whether a plain container still has the same elements, or a function closes over the same."""
    current, saved = container
    kind = type(current)
    if kind is list:
        return len(current) == len(saved) and all(map(operator.is_, current, saved))
    if kind is dict:
        same_keys = len(current) == len(saved) and all(map(operator.eq, current, saved))
        return same_keys and all(map(operator.is_, current.values(), saved.values()))
    if kind is FunctionType:
        return all(map(operator.is_, closure_contents(current), saved))
    children = pytree_impl(kind).flatten(current)[0]
    return len(children) == len(saved) and all(
        key == old_key and child is old for (key, child), (old_key, old) in zip(children, saved, strict=True)
    )


def find_walk(roots: tuple[Any, ...], names: Callable[[], Sequence[str]] | None = None) -> CachedWalk:
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
            walk.hold_weakly(roots)
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


def drop_walk(kept: dict[Any, Any], key: Any) -> None:
    """Remove a cached walk or contents from a root, and the runs that were generated for the walk."""
    walk = kept.pop(key, None)
    if type(walk) is CachedWalk:
        for number, run in list(walk.runs.items()):
            if kept.get(number) is run:
                kept.pop(number, None)


def drop_runs(root: Any, number: int) -> None:
    """Remove what one jitted function has cached on a root."""
    kept = root._pytree__walks
    kept.pop(number, None)
    for walk in list(kept.values()):
        if type(walk) is CachedWalk:
            walk.runs.pop(number, None)


def _hand_over(contents: ContainerCopies, root: Any, walk: CachedWalk) -> None:
    """Let the root store its contents as long as both the root and the walk exist."""
    key = ContainerCopies, id(contents)
    contents.guard = weakref.ref(walk, _forget(weakref.ref(root), key))
    if getattr(root, "_pytree__walks", None) is None:
        object.__setattr__(root, "_pytree__walks", {})
    root._pytree__walks[key] = contents


def _same_roots(others: tuple[Any, ...], roots: tuple[Any, ...]) -> bool:
    return all(ref() is root for ref, root in zip(others, roots[1:], strict=True))


def _forget(root: weakref.ref[Any], key: tuple[Any, ...]) -> Callable[[Any], None]:
    """Drop what a root stores when something else dies: a walk with that root, or the contents for that walk."""

    def callback(_: Any, drop: Any = drop_walk) -> None:  # at interpreter shutdown, globals are gone
        owner = root()
        if owner is not None:
            drop(owner._pytree__walks, key)

    return callback


# Roots with a cached walk, to find the path of an object for an error.
_walked: weakref.WeakSet[Any] = weakref.WeakSet()


def walked_roots() -> list[Any]:
    """The existing roots that have a cached walk."""
    while True:
        try:
            return list(_walked)
        except RuntimeError:  # another thread is walking its first model
            continue


# Functions that were warned about.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


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
