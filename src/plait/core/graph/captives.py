"""Objects that a function has from elsewhere and returns, which would come out as copies. (rule U26)"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...util.jax_versions import current_trace, describe_trace
from ...util.paths import format_path
from ...util.words import describe_type
from ..objects.journal import trace_of
from ..objects.trace_guard import call_with_model
from .locate import describe_place, path_within


def check_no_captured_objects(name: str, objects: Iterable[Any], known: Collection[int], roots: Sequence[Any]) -> None:
    """Raise if one of the objects that leave a function belongs to another trace and was not passed to it.

    Args:
        known: the ids of what was passed to it.
        roots: what leaves the function, for the path.

    Raises:
        ArgumentError: names the object, and the trace that it belongs to.
    """
    here = current_trace()
    for item in objects:
        trace = trace_of(item, here)
        if trace is not here and id(item) not in known:
            path = path_within([*roots], item)
            raise ArgumentError(
                f"{name} cannot return an object that the function captured from outside",
                at=describe_place(item),
                found=f"{describe_type(item)} of {describe_trace(trace)}"
                + (f", reached as {format_path(path[1:])}" if path and len(path) > 1 else ""),
                expected="objects that were passed as arguments or created inside",
                do=f"make the model an argument of the function: {call_with_model(name)}",
            )
