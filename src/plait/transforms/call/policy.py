"""How far a call carries what a function did: structure and values, or values alone.

A transform is given a ``Crossing`` and asks it at each call. Which arguments of the public functions, and which
settings of a thread, lead to which is not known here (``compat/door.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class Crossing:
    """What a transform asks at each of its calls: this one takes any graph, and carries everything out."""

    # Has an attribute ``ever``: whether the answers can have changed at all since the process began.
    touched: Any = SimpleNamespace(ever=False)

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out, and not values only."""
        return True

    @property
    def is_usual(self) -> bool:
        """Whether any graph is taken, and structural changes are carried out."""
        return self.updates

    def check(self, roots: Any, labels: Callable[[], Sequence[str]] | None = None) -> None:
        """Refuse objects that are not taken; ``labels`` says what each is called, if it has a name."""


STRUCTURE = Crossing()


class ValuesOnly(Crossing):
    """Takes what another crossing takes, and carries values out."""

    def __init__(self, crossing: Crossing) -> None:
        self.check, self.touched = crossing.check, crossing.touched

    @property
    def updates(self) -> bool:
        return False


def usual_or_values(crossing: Crossing) -> Crossing:
    """The crossing of a transform that carries structure of graphs only, and values of trees."""
    return crossing if crossing.is_usual else ValuesOnly(crossing)
