"""How far a call carries what a function did: structure and values, or values alone.

A transform is given a ``Crossing`` and asks it at each call. Which arguments of the public functions, and which
settings of a thread, lead to which is not known here (``compat/door.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol


class Crossing(Protocol):
    """What a transform asks at each of its calls."""

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out, and not values only."""
        ...

    @property
    def is_usual(self) -> bool:
        """Whether any graph is taken, and structural changes are carried out."""
        ...

    @property
    def touched(self) -> Any:
        """Has an attribute ``ever``: whether the answers can have changed at all since the process began."""
        ...

    def check(self, roots: Any, labels: Callable[[], Sequence[str]] | None = None) -> None:
        """Refuse objects that are not taken; ``labels`` says what each is called, if it has a name."""
        ...


class _Structure:
    """Takes any graph, and carries everything out."""

    updates = is_usual = True
    touched = SimpleNamespace(ever=False)

    def check(self, roots: Any, labels: Callable[[], Sequence[str]] | None = None) -> None: ...


STRUCTURE: Crossing = _Structure()


class ValuesOnly:
    """Takes what another crossing takes, and carries values out."""

    updates = is_usual = False

    def __init__(self, crossing: Crossing) -> None:
        self.check, self.touched = crossing.check, crossing.touched


def usual_or_values(crossing: Crossing) -> Crossing:
    """The crossing of a transform that carries structure of graphs only, and values of trees."""
    return crossing if crossing.is_usual else ValuesOnly(crossing)
