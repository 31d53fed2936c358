"""The modes of a thread that Flax's programs may set, and what a transform asks of them. (G57, U32, S5)

Graph mode, the default, allows shared objects and cycles; tree mode refuses them. With graph updates, the default,
transforms carry structural changes out, and without them values only. Functions resolve their ``graph=`` and
``graph_updates=`` at the door (``door.py``); nothing behind it asks for a mode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core.functional.modes import (
    check_mode as check_mode,
    check_tree as check_tree,
    graph_mode as graph_mode,
    graph_updates_mode as graph_updates_mode,
    in_default_modes as in_default_modes,
    set_graph_mode as set_graph_mode,
    set_graph_updates as set_graph_updates,
    touched as touched,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Crossing:
    """What one transform was told of the modes; the modes of the thread are read when it is called.

    Attributes:
        graph: whether shared objects and cycles are allowed; ``None`` is the mode of the thread.
        graph_updates: whether structural changes are carried out; ``None`` is the mode of the thread.
    """

    graph: bool | None = None
    graph_updates: bool | None = None

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out of this call, and not values only."""
        return graph_updates_mode(self.graph_updates)

    @property
    def is_usual(self) -> bool:
        """Whether this call is in both default modes: it takes any graph, and carries its changes out."""
        return (not touched.ever and self == _USUAL) or in_default_modes(self.graph, self.graph_updates)

    def check(self, roots: Any) -> None:
        """Refuse arguments that are no trees, where tree mode is in force.

        Raises:
            GraphError: an object is reached by two paths (both are named), or a class says ``pytree=False``.
        """
        check_mode(roots, self.graph)


_USUAL = Crossing()
