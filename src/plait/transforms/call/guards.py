"""Guards: objects of a different trace must not be returned from a call or written by it.

An object may be changed only in the trace that it belongs to. A transform that is called on a captured model would
leave tracers in it when it writes back. So this raises the same error as a direct write, before anything is written.
(rules U26, G64)
"""

from __future__ import annotations

from typing import Any

from ..._compat import current_trace, describe_trace, trace_state
from ...core.graph.diff import reference_changes
from ...core.graph.flatten import Walk
from ...core.graph.locate import describe_place, path_within
from ...core.objects.nodes import get_node_impl, unwrapped
from ...core.objects.pytree import Pytree
from ...core.objects.trace_guard import raise_foreign_trace
from ...core.objects.variables import Variable
from ...errors import ArgumentError
from ...paths import Path, format_path
from ...words import describe_type
from .enter import Entered
from .gather import Gathered
from .outcome import Outcome


def check_no_captives(walk: Walk, entered: Entered, out: Any, name: str) -> None:
    """Raise if the output contains an object that was neither created in the call nor passed to it.

    Raises:
        ArgumentError: names the object, and the trace that it belongs to.
    """
    known = set(map(id, entered.index_ref.values()))
    here = current_trace()
    for item in walk.refs:
        trace = _trace_of(item, here)
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


def check_writable(outcome: Outcome, gathered: Gathered) -> None:
    """Raise if the call would write back to objects that do not belong to the trace of the call.

    Raises:
        TraceContextError: names the object, and both traces.
    """
    walk, here = gathered.walk, trace_state.value
    if walk is None:
        return
    for position, _ in outcome.written:
        cell = walk.cells[position]
        if position in outcome.attributes:
            root, path = gathered.structure.leaf_paths()[position]
            owner = _owner(gathered.roots[root], path)
            if _trace_of(owner, here) is not here:
                raise_foreign_trace(_trace_of(owner, here), owner, f"set the attribute {path[-1]!r} of a")
        elif cell.trace is not here and not cell.metadata["ref"]:
            variables = Walk()
            for root in gathered.roots:
                variables.add(root)
            raise_foreign_trace(cell.trace, variables.leaves[position], "change the value of")
    if outcome.arguments is None or outcome.moved is None:
        return
    for root, path, *_ in reference_changes(gathered.structure.roots, outcome.arguments, outcome.moved):
        owner = _owner(gathered.roots[root], path)
        trace = _trace_of(owner, here)
        if trace is not here:
            raise_foreign_trace(trace, owner, f"set the attribute {path[-1]!r} of a" if path else "change a")


def _owner(root: Any, path: Path) -> Any:
    """The object that owns the attribute, or plain container, at a path."""
    owner = value = root
    for key in path:
        if isinstance(value, (Pytree, Variable)):
            owner = value
        impl = get_node_impl(value)
        children = dict(impl.flatten(value)[0]) if impl is not None else {}
        if key not in children:
            break
        value = unwrapped(children[key])
    return value if isinstance(value, Variable) else owner


def _trace_of(item: Any, otherwise: Any) -> Any:
    if isinstance(item, Variable):
        return item._cell.trace
    return item._info.trace if isinstance(item, Pytree) else otherwise
