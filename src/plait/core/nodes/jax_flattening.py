"""Graphs that JAX flattens as trees: cycles and stored views raise an error, and lost sharing causes a warning.

JAX flattens an object by requesting its children one at a time, and flattens each before it requests the next. So while
the outermost object's generator is running, every other object that JAX flattens is one of its descendants. A cycle
would never end (and the interpreter would not recover); a shared object becomes one copy per path.

Plain containers as JAX pytrees: elements that are not data are replaced by pytrees without leaves.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

import jax

from ...errors import GraphError, LostSharingWarning
from ...typing import Node, Value
from ...util.notices import warn
from ...util.paths import describe_path, format_path
from ..traces.lost_writes import PLAIT, package_of
from .attributes import contains_itself
from .nodes import (
    Kind,
    Place,
    Static,
    check_walk,
    children_if_any,
    is_bound,
    kind_of,
    pytree_impl,
    unwrapped,
    visit,
)

# JAX's own functions that flatten and use only the leaves, or only the structure.
_KEEP_NO_TREE = {"tree_leaves", "leaves", "tree_structure", "structure", "tree_reduce", "tree_all", "block_until_ready"}


class _Latest(threading.local):
    """What JAX flattens in this thread: the outermost object, the ids of all objects so far, and their children."""

    flattening: tuple[Node, set[int], list[Sequence[Value]]] | None = None


_latest = _Latest()


def check_no_cycle(node: Node, root: Node = None) -> None:
    """Raise if an object contains itself.

    Args:
        node: the object.
        root: the start of the paths in the message; ``None`` means the object itself.

    Raises:
        GraphError: names the path.
    """
    places = visit(node, children=children_if_any)
    if any(place.value is node and place.owner is not None and not _is_own_method(place.owner) for place in places):
        raise GraphError(
            "JAX was given a model that contains itself",
            at=_two_paths(node if root is None else root, node),
            found=f"the same {type(node).__name__} at both: a cycle",
            expected="a tree, because here JAX itself flattens the model (jax.tree.map, jax.jit)",
            do="use plait's own transforms, plait.jit(f)(model, x), and plait.map(f, state) for plait.state(model)",
        )


def _is_own_method(place: Place) -> bool:
    """Whether a place is a method of the object that holds it, which is rebuilt with that object."""
    owner = place.owner
    return type(place.value) is MethodType and owner is not None and place.value.__self__ is owner.value


def watched(node: Node, children: Sequence[Value]) -> Iterable[Value]:
    """The children of an object that JAX flattens.

    Raises:
        GraphError: the object contains itself.
        SharingError: the outermost object contains a layer of a stack twice.

    Warns:
        LostSharingWarning: an object or a variable has several paths from the outermost object.
    """
    flattening = _latest.flattening
    if flattening is None:
        return _from_root(node, children)
    root, met, seen = flattening
    if id(node) in met:
        check_no_cycle(node, root)
        seen.append((node, node))  # shared, perhaps in a plain list, which plait does not track
    met.add(id(node))
    seen.append(children)
    return children


def _from_root(root: Node, children: Sequence[Value]) -> Iterator[Value]:
    seen = [children]
    _latest.flattening = root, {id(root)}, seen
    try:
        yield from children
    finally:
        _latest.flattening = None
    every = [*itertools.chain.from_iterable(seen)]
    check_walk(root)
    if len({*map(id, every)}) < len(every):
        _warn_of_shared(root, every)


def _warn_of_shared(root: Node, every: list[Value]) -> None:
    counts = collections.Counter(map(id, every))
    for item in every:
        if counts[id(item)] > 1 and kind_of(item) in (Kind.VARIABLE, Kind.GRAPH) and not _only_looks():
            warn(
                LostSharingWarning,
                "JAX was given a model with a shared part, and makes a copy for each path",
                at=_two_paths(root, item),
                found=f"the same {type(item).__name__} at both",
                expected="a tree, because here JAX itself flattens the model (jax.tree.map, jax.jit)",
                do="use plait's own transforms, plait.jit(f)(model, x), and plait.map(f, state) for plait.state(model)",
            )
            return


def _two_paths(root: Node, item: object) -> str:
    places = visit(root, children=children_if_any)
    return " and ".join([describe_path(place.path) for place in places if place.value is item][:2])


def _only_looks() -> bool:
    """Whether the running JAX function only reads the leaves or the structure, without rebuilding a tree."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    callers = itertools.dropwhile(lambda frame: package_of(frame) == PLAIT, frames)
    of_jax = itertools.takewhile(lambda frame: package_of(frame) == "jax", callers)
    return any(frame.f_code.co_name in _KEEP_NO_TREE for frame in of_jax)


@dataclasses.dataclass
class HiddenCall:
    """A method or partial of a node as a JAX pytree.

    Attributes:
        kind: its type.
        children: its owner, function and arguments.
    """

    kind: type
    children: dict[str, object]


jax.tree_util.register_dataclass(HiddenCall, data_fields=["children"], meta_fields=["kind"])


def hide_static(value: Value, place: Any, above: tuple[int, ...] = ()) -> Value:
    """A container in which elements that are not data are replaced by pytrees without leaves.

    Args:
        place: the key of the outermost container in its owner.
        above: the ids of the containers that it is in.

    Raises:
        GraphError: a plain container contains itself.
    """
    kind = kind_of(value)
    if kind is Kind.STATIC:
        return Static(value)
    if kind is not Kind.PYTREE or value is None:
        return value
    if id(value) in above:
        raise contains_itself(value, format_path((place,)))
    above = (*above, id(value))
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    if is_bound(value):
        return HiddenCall(type(value), {key: hide_static(unwrapped(child), place, above) for key, child in children})
    return impl.unflatten([(key, hide_static(child, place, above)) for key, child in children], metadata)


def show_static(value: Value) -> Value:
    """The inverse of ``hide_static``."""
    if type(value) is Static:
        return value.value
    if type(value) is HiddenCall:
        children = [(key, show_static(child)) for key, child in value.children.items()]
        return pytree_impl(value.kind).unflatten(children, None)
    if value is None or type(value) is object or kind_of(value) is not Kind.PYTREE:
        return value
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    shown = [(key, show_static(child)) for key, child in children]
    if all(new is old for (_, new), (_, old) in zip(shown, children, strict=True)):
        return value
    return impl.unflatten(shown, metadata)
