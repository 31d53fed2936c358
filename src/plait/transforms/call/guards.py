"""Guards: objects of a different trace must not be returned from a call or written by it.

An object may be changed only in the trace that it belongs to. A transform that is called on a captured model would
leave tracers in it when it writes back. So this raises the same error as a direct write, before anything is written.
(rules U26, G64)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..._compat import current_trace, describe_trace, trace_state
from ...core.graph.flatten import Walk
from ...core.graph.locate import describe_place, path_within
from ...core.graph.refills import UNTOUCHED, check_refill, trace_of
from ...errors import ArgumentError
from ...paths import format_path
from ...words import describe_type
from .enter import Entered
from .gather import Gathered


def check_no_captives(walk: Walk, entered: Entered, out: Any, name: str) -> None:
    """Raise if the output contains an object that was neither created in the call nor passed to it.

    Raises:
        ArgumentError: names the object, and the trace that it belongs to.
    """
    known = set(map(id, entered.index_ref.values()))
    here = current_trace()
    for item in walk.refs:
        trace = trace_of(item, here)
        if trace is not here and id(item) not in known:
            path = path_within([*entered.roots, out], item)
            raise ArgumentError(
                f"{name} cannot return an object that the function captured from outside",
                at=describe_place(item),
                found=f"{describe_type(item)} of {describe_trace(trace)}"
                + (f", reached as {format_path(path[1:])}" if path and len(path) > 1 else ""),
                expected="objects that were passed as arguments or created inside",
                do=f"make the model an argument of the function: plait.{name}(f)(model, x)",
            )


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
