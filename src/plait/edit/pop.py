"""Removing leaves from a graph. (rule G40)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.functional.split import detached
from ..core.nodes.containers import List
from ..core.nodes.journal import Journal
from ..core.nodes.nodes import Kind, Place, change_of, check_node, visit
from ..core.nodes.pytree import Pytree, check_not_fixed
from ..core.states.live import are_live
from ..core.states.state import FlatState, State
from ..core.traces.guard import check_trace
from ..core.variables.filters import resolve_filters
from ..errors import FilterError, GraphError
from ..typing import FilterLiteral
from ..util.paths import Path, describe_path


def pop(node: Any, *filters: FilterLiteral) -> Any:
    """Remove matching leaves from their owners, and return them.

    Args:
        *filters: one state is returned for each; a leaf goes to the state of the first filter that matches it.

    Raises:
        FilterError: no filter was given.
        GraphError: a matching leaf is in an immutable container, in a view of a stack, or in a ``List`` before elements
            that stay.

    Example:
        >>> model = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> stats = plait.pop(model, plait.BatchStat)
        >>> list(stats), hasattr(model, "mean")
        (['mean', 'var'], False)
    """
    states = graph_pop(node, filters)
    return states[0] if len(filters) == 1 else states


def graph_pop(node: Any, filters: tuple[FilterLiteral, ...]) -> tuple[State, ...]:
    """``pop`` with the filters as a tuple; always a tuple of states."""
    if not filters:
        raise FilterError(
            "Expected at least one filter: pop needs to know what to remove",
            found="no filter",
            expected="pop(model, filter, ...)",
            do="to remove everything, pass `...`",
        )
    check_node(node, "pop")
    predicates = resolve_filters(filters)
    groups: list[list[tuple[Path, Any]]] = [[] for _ in predicates]
    removals: list[tuple[Callable[..., Any], Any, Any, Path]] = []
    done: set[Place] = set()
    for place in visit(node):
        if place.owner is None or place.kind not in _LEAVES or place.first in done:
            continue
        path, leaf, owner = place.path, place.value, place.owner.value
        number = next((number for number, predicate in enumerate(predicates) if predicate(path, leaf)), None)
        if number is not None:
            pop_key = change_of("pop", owner, place.key, leaf, describe_path(path))
            if isinstance(owner, Pytree):
                check_trace(owner._pytree__info.trace, owner, "pop from")
                check_not_fixed(owner)
            done.add(place.first or place)
            removals.append((pop_key, owner, place.key, path))
            groups[number].append((path, leaf if are_live() else detached(leaf)))
    with Journal() as journal:
        for pop_key, owner, key, path in reversed(removals):  # the last of a List first
            if isinstance(owner, List) and type(key) is int and key + 1 < len(owner):
                raise GraphError(
                    f"Cannot pop key {key} of a List: the elements after it would move",
                    at=describe_path(path),
                    found=f"{describe_path((*path[:-1], key + 1))}, which stays; update would overwrite it",
                    expected="elements at the end of the List, or all of them",
                    do="keep what is popped in attributes or in a plait.Dict; to read without removing: "
                    "plait.state(model, filter)",
                )
            journal.note_node(owner)
            pop_key(owner, key)
    return tuple(FlatState(group, sort=True).to_nested_state() for group in groups)


_LEAVES = (Kind.VARIABLE, Kind.REF, Kind.ARRAY)
