"""Lost writes: cells of copied variables that warn if a value written to them is never read.

Variables are copied when one of JAX's own transforms rebuilds them inside a trace, and when a state is split from a
graph. A write to a leaf of a state reaches the model through ``plait.update(model, state)``, or another model through
``merge``; both read it. If a leaf was written and is freed before it is read, the write is lost. This causes a warning,
once for each line of the program that writes.
"""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import warnings
from types import FrameType
from typing import Any

from ...errors import LostUpdateWarning
from ...typing import Node, Value
from ...util.jax_versions import Trace
from ...util.words import with_article
from ..variables.cells import DETACHED, Cell
from .guard import known_path


class _LatestFlatten(threading.local):
    """The trace, other than the top level, in which JAX last flattened a variable in this thread."""

    trace: Trace | None = None


latest_flatten = _LatestFlatten()


class LentCell(Cell):
    """The cell of a variable that one of JAX's own transforms rebuilt inside a trace.

    A value written to it reaches the caller only if the variable is returned. If a changed value is never flattened
    again and never walked by plait, it is lost when the cell dies, and the cell warns. This does not apply to a copy
    that the user makes inside the trace with ``jax.tree.map``: it is flattened in the same trace in which it is
    rebuilt, while the arguments of a transform are flattened outside.
    """

    __slots__ = ("carried", "kind", "written")

    def __init__(self, cell: Cell, kind: type) -> None:
        self.version = 0
        self.raw = self.carried = cell.raw
        self.metadata = cell.metadata
        self.trace = cell.trace
        self.kind = kind.__name__
        self.written: tuple[str | None, tuple[Any, ...]] | None = None

    def __del__(self) -> None:
        if self.raw is not self.carried and not self.version:
            path, line = self.written or (None, _line_of_program())
            what = f"{with_article(self.kind)} of shape {getattr(self.raw, 'shape', None)}"
            warnings.warn_explicit(
                f"{path + ', ' if path else ''}{what}, was changed inside one of JAX's own transforms, which works on "
                "a copy, so the change is lost. Return the module from the function, or use plait's transform of the "
                "same name, which keeps changes.",
                LostUpdateWarning,
                *line,
            )


PLAIT = __name__.partition(".")[0]

# Written cells, by identity: the kind of variable, and the source location for ``warn_explicit``. ``note_write`` adds
# an entry; the next reader, or the death of the cell, removes it.
_WRITTEN: dict[int, tuple[Any, ...]] = {}


class UnreadCell(Cell):
    """The cell of a leaf of a split state, between a write and the next read, which makes it a plain ``Cell`` again."""

    __slots__ = ()

    @property
    def raw(self) -> Value:
        self.__class__ = Cell  # pyright: ignore[reportAttributeAccessIssue]
        _WRITTEN.pop(id(self), None)
        return self.raw

    @raw.setter
    def raw(self, value: Value) -> None:
        _set_raw(self, value)

    def __del__(self) -> None:
        if id(self) in _WRITTEN:
            _warn(self)


_set_raw = Cell.__dict__["raw"].__set__


def _warn(cell: UnreadCell) -> None:
    kind, place = _WRITTEN.pop(id(cell))
    if cell.version == DETACHED:  # otherwise it belongs to a graph now
        warnings.warn_explicit(
            f"a value written into {with_article(kind)} of a state is lost. A state that was split from a model "
            "has copies of its variables. To change the model, call plait.update(model, state), or write into "
            "plait.variables(model), which returns the model's own variables.",
            LostUpdateWarning,
            *place,
        )


@atexit.register
def _warn_at_exit() -> None:
    """Warn about lost writes to objects that live as long as the program, before this module is taken apart."""
    for cell in gc.get_objects() if _WRITTEN else ():
        if type(cell) is UnreadCell and id(cell) in _WRITTEN:
            _warn(cell)
    del UnreadCell.__del__  # what dies later may do so when this module has been taken apart


def package_of(frame: FrameType) -> str:
    """The package whose code a frame runs."""
    return frame.f_globals.get("__name__", "").partition(".")[0]


def note_write(variable: Node) -> None:
    """Record the line of the program that wrote to a variable, if that is a copy and the write may be lost."""
    cell = variable._cell
    if cell.version == DETACHED:
        cell.__class__ = UnreadCell
        _WRITTEN[id(cell)] = type(variable).__name__, _line_of_program()
    elif type(cell) is LentCell and cell.written is None:
        cell.written = known_path(variable), _line_of_program()


def _line_of_program() -> tuple[Any, ...]:
    """The line that is running now, outside of plait, for ``warn_explicit``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and package_of(frame) == PLAIT:
        frame = frame.f_back
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    return frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<unknown>"), registry
