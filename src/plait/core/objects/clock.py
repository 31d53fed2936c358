"""The structure clock: one process-wide counter that moves with every structural change to an object already walked.

Every object that a walk can enter owns a ``Stamp``. Its ``version`` is 0 until a crossing first sees the object; from
then on each structural change gives it a fresh number and sets the clock to that number. A cached walk is trusted while
the clock stands still; otherwise it compares the versions of its own stamps (see ``walks.py``).

Numbers are never used twice, so two threads that change two objects at once cannot hide each other's change. Stamps are
what caches hold: they refer to nothing, so no cache keeps a module alive.
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(2)


class Clock:
    """Holds ``now``, the number of the latest structural change."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


clock = Clock()


# The version of a leaf of a state that was split from a graph, until a crossing sees it as part of a graph.
DETACHED = -1


class Stamp:
    """The version of one object's structure; 0, or ``DETACHED``, means that no crossing has seen the object."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


def mark_seen(stamp: Stamp) -> None:
    """Note that a walk is about to read the object. Must come before the reading."""
    if stamp.version <= 0:
        stamp.version = 1


def mark_changed(stamp: Stamp) -> None:
    """Note a structural change. Must come after the change."""
    if stamp.version > 0:
        stamp.version = clock.now = next(_numbers)
