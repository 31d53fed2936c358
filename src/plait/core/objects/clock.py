"""The structure clock: one process-wide counter that advances with every structural change of a walked object.

Every object that a walk can enter has a ``Stamp``. Its ``version`` is 0 until a transform first walks the object. From
then on, each structural change gives it a new number and sets the clock to that number. A cached walk is valid while
the clock has not advanced; otherwise it compares the versions of its own stamps (see ``walks.py``).

Numbers are never reused, so two threads that walk or change objects at the same time cannot hide each other's change.
Caches store stamps, which reference nothing, so no cache keeps a module alive.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

_numbers = itertools.count(2)


class Clock:
    """The clock: ``now`` is the number of the latest structural change."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


clock = Clock()


# The version of a leaf of a state that was split from a graph, until it is walked as part of a graph.
DETACHED = -1


class Stamp:
    """The version of one object's structure; 0, or ``DETACHED``, means that no transform has walked the object."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


def mark_seen(stamp: Stamp) -> int:
    """Record that a walk reads the object, and return its version until then. Must be called before reading."""
    if stamp.version <= 0:
        stamp.version = next(_numbers)
    return stamp.version


def mark_changed(stamp: Stamp) -> None:
    """Record a structural change. Must be called after the change."""
    if stamp.version > 0:
        stamp.version = clock.now = next(_numbers)


class NodeInfo(Stamp):
    """plait's data about one object: its structure version, its trace, and its explicit marks."""

    __slots__ = ("marks", "trace")

    marks: dict[Any, str] | None  # by attribute name; in a List also by index
    trace: Any
    fixed: ClassVar[Any] = None  # as of a cell
    free: ClassVar[tuple[str, ...]] = ()  # attributes that may change all the same

    def __init__(self, trace: Any, marks: dict[Any, str] | None = None) -> None:
        self.version = 0
        self.trace = trace
        self.marks = marks

    def mark_rebuilt(self) -> None:
        """Record that plait itself changed the node: a transform rebuilt it, or a capture began or ended."""
        mark_changed(self)


class UnseenInfo(NodeInfo):
    """The shared info of many nodes created at once, used until a node is walked or gets a mark.

    Most merged models are called and dropped, and need nothing else. Its version stays 0.
    """

    __slots__ = ()
