"""What JAX loses of a graph: it takes a module for a tree.

JAX flattens an object by asking it for its children, one after the other, and flattens each before it asks for the
next. So the objects that are open, and those that were met, are known while it does. A cycle would not end (and the
interpreter would not recover); what is shared becomes one copy for each place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import GraphError, LostSharingWarning
from ...notices import warn
from ...paths import describe_path
from .nodes import Kind, kind_of
from .visit import children_if_any, visit

# JAX's own functions that flatten and keep no more than the leaves, or the structure.
_KEEP_NO_TREE = {"tree_leaves", "leaves", "tree_structure", "structure", "tree_reduce", "tree_all", "block_until_ready"}


class _Flattening(threading.local):
    """What JAX flattens in this thread.

    Attributes:
        open: the objects whose children JAX goes through, by identity, outermost first.
        met: all objects and variables since the outermost was opened.
        told: whether one of them was told to be shared.
    """

    def __init__(self) -> None:
        self.open: dict[int, Any] = {}
        self.met: set[int] = set()
        self.told = False


_flattening = _Flattening()


def check_no_cycle(node: Any) -> None:
    """Refuse an object that leads to itself, where JAX asks for all children at once, as with their keys.

    Raises:
        GraphError: names the path.
    """
    places = visit(node, children=children_if_any)
    if any(place.value is node and place.owner is not None for place in places):
        _raise_cycle(node, node)


def watched(node: Any, children: Iterable[Any]) -> Iterator[Any]:
    """The children of an object that JAX flattens.

    Raises:
        GraphError: the object is open already.

    Warns:
        LostSharingWarning: an object or a variable was met before.
    """
    state = _flattening
    if id(node) in state.open:
        _raise_cycle(next(iter(state.open.values())), node)
    if not state.open:
        state.met, state.told = set(), False
    _note(state, node)
    return _children(state, node, children)


def _children(state: _Flattening, node: Any, children: Iterable[Any]) -> Iterator[Any]:
    state.open[id(node)] = node
    try:
        for child in children:
            if kind_of(child) is Kind.VARIABLE:
                _note(state, child)
            yield child
    finally:
        state.open.pop(id(node), None)


def _note(state: _Flattening, item: Any) -> None:
    if id(item) not in state.met:
        state.met.add(id(item))
    elif not state.told and not _only_looks():
        state.told = True
        _warn_of_shared(next(iter(state.open.values())), item)


def _only_looks() -> bool:
    """Whether a function of JAX flattens that makes no tree of it again."""
    frame: Any = sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "jax":
        if frame.f_code.co_name in _KEEP_NO_TREE:
            return True
        frame = frame.f_back
    return False


def _raise_cycle(root: Any, node: Any) -> None:
    paths = [describe_path(place.path) for place in visit(root, children=children_if_any) if place.value is node]
    raise GraphError(
        "JAX was given a model that contains itself",
        at=" and ".join(paths[:2]),
        found=f"the same {type(node).__name__} at both: a cycle, which is no tree",
        expected="a tree, where JAX flattens a model by itself (jax.tree.map, jax.jit)",
        do="use plait's own transforms, plait.jit(f)(model, x), and plait.map(f, state) for plait.state(model)",
    )


def _warn_of_shared(root: Any, item: Any) -> None:
    paths = [describe_path(place.path) for place in visit(root, children=children_if_any) if place.value is item]
    warn(
        LostSharingWarning,
        "JAX was given a model in which something is shared, and makes a copy for each place",
        at=" and ".join(paths[:2]),
        found=f"the same {type(item).__name__} at both",
        expected="a tree, where JAX flattens a model by itself (jax.tree.map, jax.jit)",
        do="use plait's own transforms, plait.jit(f)(model, x), and plait.map(f, state) for plait.state(model)",
    )
