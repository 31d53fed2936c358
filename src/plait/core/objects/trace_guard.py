"""The trace guard: an object may be changed only in the JAX trace that it belongs to.

A write from a deeper trace would leave a tracer behind in an object that outlives the trace; a write from a foreign one
would be lost. Reading is always allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._compat import current_trace as current_trace, describe_trace, trace_state, transform_of
from ...errors import TraceContextError
from ...words import with_article

# ``locate.py`` registers how to find the path of an object: from the modules and variables of the running functions,
# and from the graphs that crossings have walked.
find_paths: list[Callable[[Any], str | None]] = []
# ``compat/private_names.py`` registers who lets an object be changed in a foreign trace.
excuses: list[Callable[[Any], bool]] = []


def check_trace(trace: Any, owner: Any, action: str) -> None:
    """Refuse to change ``owner``, which belongs to ``trace``, from another trace.

    Raises:
        TraceContextError: the current trace is another one; the message names the class, the path where it is known,
            and both traces.
    """
    if trace is not trace_state.value:
        raise_foreign_trace(trace, owner, action)


def raise_foreign_trace(trace: Any, owner: Any, action: str) -> None:
    """Raise the error of ``check_trace``, unless the owner is excused."""
    if any(excuse(owner) for excuse in excuses):
        return
    path = path_of(owner)
    kind = type(owner).__name__
    what = f"{action[:-2]} {with_article(kind)}" if action.endswith(" a") else f"{action} {kind}"
    transform = transform_of(current_trace())
    raise TraceContextError(
        f"cannot {what} from another trace than the one it belongs to",
        at=f"{path} ({with_article(kind)})" if path else with_article(kind),
        found=f"the current trace is {describe_trace(current_trace())}",
        expected=f"{describe_trace(trace)}, where the {kind} was created",
        do="return the new value from the function, and make the change after the call"
        if transform is None
        else "make the model an argument of the function, and use plait's own transform, which carries the change out: "
        f"plait.{transform}(f)(model, x)"
        + (", with argnums=1 for the gradient with respect to x alone" if transform == "grad" else ""),
    )


def path_of(owner: Any) -> str | None:
    """The path of an object, if it is found in a model that is known."""
    return next((found for find in find_paths if (found := find(owner)) is not None), None)
