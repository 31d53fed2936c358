"""The guard of objects of a different trace, which a call must not write.

An object may be changed only in the trace that it belongs to. A transform that is called on a captured model would
leave tracers in it when it writes back. So this raises the same error as a direct write, before anything is written.
(rule G64)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..._compat import trace_state
from ...core.graph.flatten import Walk
from ...core.graph.refills import UNTOUCHED, check_refill
from .gather import Gathered


def check_writable(positions: Iterable[int], gathered: Gathered) -> None:
    """Raise if the call would write back values at these positions to objects of a different trace.

    Raises:
        TraceContextError: names the object, and both traces.
    """
    walk, here = gathered.walk, trace_state.value
    cells = [] if walk is None else [(walk.types[position], walk.cells[position]) for position in positions]
    # Array attributes are left to check_refill.
    if all(cls is not None and (cell.trace is here or cell.metadata["ref"]) for cls, cell in cells):
        return
    outer = Walk()
    for root in gathered.roots:
        outer.add(root)
    written = {*positions}
    leaves = (_NEW if position in written else UNTOUCHED for position in range(len(outer.leaves)))
    check_refill(gathered.structure.roots, leaves, {index: item for item, index in outer.refs.items()})


_NEW: Any = object()
