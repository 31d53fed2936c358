"""Variables that JAX's own transforms rebuild inside a trace, and the writes to them that are lost."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from ...errors import LostUpdateWarning
from ...words import with_article
from .cells import Cell


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
