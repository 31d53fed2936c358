"""The modes of a thread or task that Flax's programs may set, and the check of tree mode. (G57, U32, S5)

Graph mode, the default, allows shared objects and cycles; tree mode rejects them. With graph updates, the default,
transforms propagate structural changes to the caller's objects; without them, and in tree mode, values only. Public
functions take ``graph=`` and ``graph_updates=``, where ``None`` means the mode of the thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...errors import GraphError
from ...typing import Node, Tree
from ...util.environment import flag
from ...util.paths import Path, describe_path
from ...util.words import describe_type
from ..nodes.module import Pytree
from ..nodes.nodes import Kind, Place, is_bound, visit
from ..settings import Restoring, Settings, declared


class _Modes(Settings):
    graph: bool = flag("PLAIT_GRAPH_MODE", "1")
    graph_updates: bool = flag("PLAIT_GRAPH_UPDATES", "1")


modes = declared("modes", _Modes())


class set_graph_mode(Restoring):
    """Set whether modules of this thread or task are graphs (the default) or plain trees without sharing.

    Takes effect immediately; as a context manager or decorator it restores the previous mode.

    Example:
        >>> shared = plait.Param(1.0)
        >>> with plait.set_graph_mode(False):
        ...     try:
        ...         _ = plait.split([shared, shared])
        ...     except plait.errors.PlaitError as error:
        ...         print(error.parts["at"], plait.set_graph_mode.current_value())
        [0] and [1] False
    """

    def __init__(self, value: bool, /) -> None:
        super().__init__(modes, graph=bool(value))

    @staticmethod
    def current_value() -> bool:
        """The mode of the thread or task."""
        return modes.graph


class set_graph_updates(Restoring):
    """Set whether transforms of this thread or task propagate structural changes (the default), or values only.

    Takes effect immediately; as a context manager or decorator it restores the previous mode.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> with plait.set_graph_updates(False):
        ...     plait.jit(lambda model: setattr(model, "extra", 1))(model)
        >>> hasattr(model, "extra"), plait.set_graph_updates.current_value()
        (False, True)
    """

    def __init__(self, value: bool, /) -> None:
        super().__init__(modes, graph_updates=bool(value))

    @staticmethod
    def current_value() -> bool:
        """The mode of the thread or task."""
        return modes.graph_updates


def graph_mode(graph: bool | None = None) -> bool:
    """Whether graph mode is on: the argument, else the setting of the thread."""
    return modes.graph if graph is None else graph


def graph_updates_mode(graph_updates: bool | None = None) -> bool:
    """Whether transforms propagate structural changes: the argument, else the mode of the thread."""
    return modes.graph_updates if graph_updates is None else graph_updates


def check_mode(node: Node, graph: bool | None, describe: Callable[[Path], str] = describe_path) -> None:
    """Raise for anything but a tree in tree mode.

    Args:
        node: the graph.
        graph: whether graph mode is on; ``None`` means the setting of the thread.
        describe: shows a path in ``node``.

    Raises:
        GraphError: an object is reached by two paths (both are named), or a class says ``pytree=False``.
    """
    if graph_mode(graph):
        return

    for place in visit(node):
        value, kind = place.value, type(place.value).__name__
        if place.first is not None and not _is_of_a_method(place):
            raise GraphError(
                f"Duplicate {kind} found at paths of one tree: tree mode takes no shared objects and no cycles",
                at=f"{describe(place.first.path)} and {describe(place.path)}",
                found=f"the same {kind} at both (a duplicate)",
                expected="each object at one path",
                do="use graph mode (graph=True), or put a separate object at each path: plait.clone",
            )
        if isinstance(value, Pytree) and not value._pytree__is_tree:
            raise GraphError(
                "tree mode takes only classes that are JAX pytrees",
                at=describe(place.path),
                found=f"{describe_type(value)}, whose class says pytree=False",
                expected="classes that are pytrees",
                do="use graph mode (graph=True)",
            )


def _is_of_a_method(place: Place) -> bool:
    """Whether a place is that of the owner of a bound method, or of an argument of a partial."""
    owner = place.owner
    while owner is not None and owner.kind is Kind.PYTREE:
        if is_bound(owner.value):
            return True
        owner = owner.owner
    return False


@dataclasses.dataclass(frozen=True)
class Crossing:
    """The modes passed to one transform; those of the thread are read in each call.

    Attributes:
        graph: whether shared objects and cycles are allowed; ``None`` means the mode of the thread.
        graph_updates: whether structural changes are propagated; ``None`` means the mode of the thread.
    """

    graph: bool | None = None
    graph_updates: bool | None = None

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out; otherwise, and for every tree, values only."""
        return graph_mode(self.graph) and graph_updates_mode(self.graph_updates)

    def check(self, roots: Tree, describe: Callable[[Path], str] = describe_path) -> None:
        """``check_mode`` with this mode."""
        check_mode(roots, self.graph, describe)

    def values_only(self) -> Crossing:
        """The same graphs, and only values."""
        return Crossing(self.graph, graph_updates=False)


STRUCTURE = Crossing(graph=True, graph_updates=True)
