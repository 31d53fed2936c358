"""Lost writes: cells of copied variables, which warn if a value written to them is never read.

Variables are copied when one of JAX's own transforms rebuilds them inside a trace, and when a state is split from a
graph. A write to a leaf of a state reaches the model through ``plait.update(model, state)``, or another model through
``merge``; both read it. If a leaf was written and is freed without having been read, the write is lost, and a warning
says so, once for each line of the program that wrote.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

from ...errors import LostUpdateWarning
from ...words import with_article
from .cells import Cell
from .clock import DETACHED


class _LatestFlatten(threading.local):
    """The trace, other than the top level, in which JAX last took a variable apart in this thread."""

    trace: Any = None


latest_flatten = _LatestFlatten()


class LentCell(Cell):
    """The cell of a variable that one of JAX's own transforms rebuilt inside a trace.

    What is written to it reaches the caller only if the variable is returned. A value that was changed, never flattened
    again and never walked by plait is lost when the cell dies, and the cell says so. A copy that the user makes inside
    the trace, with ``jax.tree.map``, is no such variable: it is taken apart in the trace in which it is rebuilt, while
    the arguments of a transform are taken apart outside of it.
    """

    __slots__ = ("carried", "kind")

    def __init__(self, cell: Cell, kind: type) -> None:
        self.version = 0
        self.raw = self.carried = cell.raw
        self.metadata = cell.metadata
        self.trace = cell.trace
        self.kind = kind.__name__

    def __del__(self) -> None:
        if self.raw is not self.carried and not self.version:
            what = f"{with_article(self.kind)} of shape {getattr(self.raw, 'shape', None)}"
            warnings.warn(
                f"{what} was changed inside one of JAX's own transforms, which works on a copy, and the change is "
                "lost. Return the module from the function, or use plait's transform of the same name, which carries "
                "changes out.",
                LostUpdateWarning,
                stacklevel=1,
            )


_PLAIT = __name__.partition(".")[0]

# Who is written, by the identity of the cell: the kind of variable, and the place as ``warn_explicit`` takes it. Filled
# by ``note_write``, emptied by the next reader, or by the death of the cell.
_WRITTEN: dict[int, tuple[Any, ...]] = {}


class UnreadCell(Cell):
    """The cell of a leaf of a split state, from a write to the next reader, who makes it a plain one again."""

    __slots__ = ()

    @property
    def raw(self) -> Any:
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
