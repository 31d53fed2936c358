"""The trace guard: an object may be changed only in the JAX trace that it belongs to.

A write from an inner trace would leave a tracer in an object that outlives the trace; a write from an unrelated one
would be lost. Reading is always allowed.
"""

from __future__ import annotations

from ...core import hooks
from ...errors import TraceContextError
from ...typing import Node
from ...util.jax_versions import Trace, current_trace as current_trace, describe_trace, trace_state, transform_of
from ...util.words import with_article
from ..transform import Transformation


def check_trace(trace: Trace, owner: Node, action: str) -> None:
    """Raise if ``owner``, which belongs to ``trace``, would be changed in a different trace.

    Raises:
        TraceContextError: the current trace is a different one; the message names the class, the path (if known), and
            both traces.
    """
    if trace is not trace_state.value:
        raise_foreign_trace(trace, owner, action)


def raise_foreign_trace(trace: Trace, owner: Node, action: str) -> None:
    """Raise the error of ``check_trace``, unless the owner is exempt."""
    if is_excused(owner):
        return
    path = known_path(owner)
    kind = type(owner).__name__
    what = f"{action[:-2]} {with_article(kind)}" if action.endswith(" a") else f"{action} {kind}"
    here, there = describe_trace(current_trace()), describe_trace(trace)
    there = "another trace of the same kind around it" if there == here else there
    transform = transform_of(current_trace())
    known = Transformation.known.get(transform or "")
    raise TraceContextError(
        f"Cannot mutate {kind}: cannot {what} from a different trace than its own",
        at=f"{path} ({with_article(kind)})" if path else with_article(kind),
        found=f"the current trace is {here}",
        expected=f"{there}, where the {kind} was created",
        do="return the new value from the function, and make the change after the call"
        if transform is None
        else "make the model an argument of the function, and use plait's own transform, which keeps the change: "
        + call_with_model(transform)
        + (_FOR_STREAMS if action.startswith("draw") and getattr(known, "maps", False) else ""),
    )


def is_excused(owner: Node) -> bool:
    """Whether an object may be changed in a different trace."""
    return hooks.excuse is not None and hooks.excuse(owner)


_FOR_STREAMS = ", with its streams split (plait.split_rngs), or each element draws the same"


def call_with_model(transform: str) -> str:
    """The code, for advice, that passes a model to a transformed function."""
    known = Transformation.known.get(transform)
    return f"plait.{transform}(f)(model, x)" if known is None else known.of_model


def known_path(owner: Node) -> str | None:
    """The path of an object, if it is found in a known model."""
    return None if hooks.find_path is None else hooks.find_path(owner)
