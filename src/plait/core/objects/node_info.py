"""plait's data about one graph node, stored beside its attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from .clock import Stamp, mark_changed


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
