"""Policies: whether a call carries out structure and values, or only values.

A transform gets a ``Crossing`` and queries it in each call. ``flax/compat/door.py`` chooses it from the arguments of
the public functions and the settings of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class Crossing:
    """The policy that a transform queries in each call. This one accepts any graph, and carries out everything."""

    # Has an attribute ``ever``: whether the answers may have changed since the process began.
    touched: Any = SimpleNamespace(ever=False)

    @property
    def updates(self) -> bool:
        """Whether structural changes are carried out, not only values."""
        return True

    def check(self, roots: Any, labels: Callable[[], Sequence[str]] | None = None) -> None:
        """Raise if some objects are not accepted; ``labels`` returns their names, if they have any."""

    def values_only(self) -> Crossing:
        """The policy that accepts the same graphs, and carries out only values."""
        return _ValuesOnly(self)


STRUCTURE = Crossing()


class _ValuesOnly(Crossing):
    def __init__(self, crossing: Crossing) -> None:
        self.check, self.touched = crossing.check, crossing.touched

    @property
    def updates(self) -> bool:
        return False
