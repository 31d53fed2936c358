"""Taking leaves out of a graph. (rule G40)"""

from __future__ import annotations

from typing import Any

from ...errors import FilterError, GraphError
from ...paths import Path, describe_path
from ...typing import FilterLiteral
from ..objects.filters import resolve_filters
from ..objects.nodes import Kind, check_node, get_node_impl
from ..objects.pytree import Pytree
from ..objects.state import FlatState, State
from ..objects.trace_guard import check_trace
from ..objects.visit import Place, visit
from .split import detached


def pop(node: Any, *filters: FilterLiteral) -> Any:
    """Remove the leaves that match from their owners, and return them.

    Args:
        *filters: one state is returned for each; a leaf goes to the first that matches.

    Raises:
        FilterError: no filter was given.
        GraphError: a matching leaf sits in a container that nothing can be removed from.

    Example:
        >>> model = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> stats = plait.pop(model, plait.BatchStat)
        >>> list(stats), hasattr(model, "mean")
        (['mean', 'var'], False)
    """
    states = graph_pop(node, filters)
    return states[0] if len(filters) == 1 else states


def graph_pop(node: Any, filters: tuple[FilterLiteral, ...], /) -> tuple[State, ...]:
    """``pop`` with the filters as a tuple; always a tuple of states."""
    if not filters:
        raise FilterError(
            "Expected at least one filter: pop needs to know what to take out",
            found="no filter",
            expected="pop(model, filter, ...)",
            do="to remove everything pass `...`",
        )
    check_node(node, "pop")
    predicates = resolve_filters(filters)
    groups: list[list[tuple[Path, Any]]] = [[] for _ in predicates]
    removals: list[tuple[Any, Any]] = []
    popped: set[Place] = set()
    for place in visit(node):
        if place.owner is None or place.kind not in _LEAVES or place.first in popped:
            continue
        path, leaf, owner = place.path, place.value, place.owner.value
        number = next((number for number, predicate in enumerate(predicates) if predicate(path, leaf)), None)
        if number is not None:
            _check_can_pop(owner, path, leaf)
            popped.add(place.first or place)
            removals.append((owner, place.key))
            groups[number].append((path, detached(leaf)))
    for owner, key in reversed(removals):  # from the end, so that the indices of a List stay valid
        get_node_impl(owner).pop_key(owner, key)  # type: ignore[union-attr,misc]
    return tuple(FlatState(group, sort=True).to_nested_state() for group in groups)


_LEAVES = (Kind.VARIABLE, Kind.REF, Kind.ARRAY)


def _check_can_pop(owner: Any, path: Path, leaf: Any) -> None:
    impl = get_node_impl(owner)
    if impl is None or impl.pop_key is None:
        raise GraphError(
            f"Cannot pop key {path[-1]!r} of a {type(owner).__name__}",
            at=describe_path(path),
            found=f"a {type(leaf).__name__} in a {type(owner).__name__}",
            expected="leaves in modules or dicts",
            do="replace the whole container on its owner",
        )
    if isinstance(owner, Pytree):
        check_trace(owner._info.trace, owner, "pop from")
