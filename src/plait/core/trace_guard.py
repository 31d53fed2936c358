"""The trace guard: an object may be changed only in the JAX trace that it belongs to.

A write from a deeper trace would leave a tracer behind in an object that outlives the trace; a write from a foreign one
would be lost. Reading is always allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._compat import current_trace as current_trace, describe_trace, trace_state
from ..errors import TraceContextError

# ``walks.py`` registers how to find the path of an object in the graphs that crossings have walked.
find_paths: list[Callable[[Any], str | None]] = []


def check_trace(trace: Any, owner: Any, action: str) -> None:
    """Refuse to change ``owner``, which belongs to ``trace``, from another trace.

    Raises:
        TraceContextError: the current trace is another one; the message names the class, the path where it is known,
            and both traces.
    """
    if trace is not trace_state.value:
        raise_foreign_trace(trace, owner, action)


def raise_foreign_trace(trace: Any, owner: Any, action: str) -> None:
    """Raise the error of ``check_trace``."""
    path = next((found for find in find_paths if (found := find(owner)) is not None), None)
    kind = type(owner).__name__
    raise TraceContextError(
        f"cannot {action} {kind} from another trace than the one it belongs to",
        at=f"{path} (a {kind})" if path else f"a {kind}",
        found=f"the current trace is {describe_trace(current_trace())}",
        expected=f"{describe_trace(trace)}, where the {kind} was created",
        do="pass the object to the transformed function as an argument, and use plait's own transform (plait.jit, "
        "plait.grad, …) so that the change is carried out of the trace",
    )
