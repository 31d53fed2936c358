"""How far a call carries what a function did: structure and values, or values alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...core.functional.modes import check_mode, graph_updates_mode, in_default_modes, touched


@dataclasses.dataclass(frozen=True)
class Crossing:
    """What was said about one transform, resolved at each of its calls."""

    graph: bool | None = None
    graph_updates: bool | None = None

    touched = touched  # whether it can have changed at all

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out."""
        return graph_updates_mode(self.graph_updates)

    @property
    def is_default(self) -> bool:
        """Whether graphs are taken, and structural changes carried out."""
        return in_default_modes(self.graph, self.graph_updates)

    def check(self, roots: Sequence[Any]) -> None:
        """Refuse objects that are not taken."""
        check_mode(list(roots), self.graph)


DEFAULT = Crossing()
