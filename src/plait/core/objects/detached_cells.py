"""Leaves of states that were split from a graph, and the writes into them that nobody reads.

Such a leaf is no variable of the model. What is written into it reaches the model by ``plait.update(model, state)``, or
another model by ``merge``; either reads it. A leaf that was written and dies without having been read has lost what was
written, and says so, once for each place in the program that wrote.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ...errors import LostUpdateWarning
from ...words import with_article
from .cells import Cell
from .clock import DETACHED

_PLAIT = __name__.partition(".")[0]

# Who is written, by the identity of the cell: the kind of variable, and the place as ``warn_explicit`` takes it. Filled
# by ``note_write``, emptied by the next reader, or by the death of the cell.
_WRITTEN: dict[int, tuple[Any, ...]] = {}


class UnreadCell(Cell):
    """The cell of such a leaf from a write to the next reader, who makes it a plain one again."""

    __slots__ = ()

    @property
    def raw(self) -> Any:  # type: ignore[override]
        self.__class__ = Cell  # pyright: ignore[reportAttributeAccessIssue]
        _WRITTEN.pop(id(self), None)
        return self.raw

    @raw.setter
    def raw(self, value: Any) -> None:
        _set_raw(self, value)

    def __del__(self) -> None:
        kind, place = _WRITTEN.pop(id(self), (None, None))
        if place is not None and self.version == DETACHED:  # else it belongs to a graph by now
            warnings.warn_explicit(
                f"what was written into {with_article(kind)} of a state is lost. A state that was split from a model "
                "has variables of its own. To change the model: plait.update(model, state), or write into "
                "plait.variables(model), which are its own.",
                LostUpdateWarning,
                *place,
            )


_set_raw = Cell.__dict__["raw"].__set__


def note_write(cell: Cell, kind: type) -> None:
    """Remember which place in the program wrote into a detached cell."""
    cell.__class__ = UnreadCell
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PLAIT:
        frame = frame.f_back
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    place = (frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<unknown>"), registry)
    _WRITTEN[id(cell)] = kind.__name__, place
