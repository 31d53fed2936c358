"""Splitting, filtering, mapping and subtracting states, as functions of any nested mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...typing import FilterLiteral, Value
from ...util.paths import Path
from .state import S, State, class_of, difference, from_flat_state, grouped, to_flat_state


def split_state(state: Mapping[Any, Value], first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
    """One state per filter; the filters must match every leaf. Returns one state for one filter, a tuple for several.

    Raises:
        FilterError: a leaf matches none of the filters; the message names its path.

    Example:
        >>> state = plait.state(plait.BatchNorm(3, rngs=plait.Rngs(0)))
        >>> params, rest = plait.split_state(state, plait.Param, ...)
        >>> list(params), list(rest)
        (['bias', 'scale'], ['mean', 'var'])
    """
    return grouped(state, (first, *filters), exhaustive=True)


def filter_state(state: Mapping[Any, Value], first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
    """One state per filter, without unmatched leaves. Returns one state for one filter, a tuple for several.

    Example:
        >>> list(plait.filter_state(plait.state(plait.BatchNorm(3, rngs=plait.Rngs(0))), plait.BatchStat))
        ['mean', 'var']
    """
    return grouped(state, (first, *filters), exhaustive=False)


def map_state(f: Callable[[Path, Value], Value], state: S) -> S:
    """``f(path, leaf)`` on every leaf, in a new state.

    Example:
        >>> plait.to_pure_dict(plait.map_state(lambda path, leaf: path, plait.State({"a": {0: 1.0}})))
        {'a': {0: ('a', 0)}}
    """
    flat = to_flat_state(state)
    return from_flat_state(((path, f(path, leaf)) for path, leaf in flat), cls=class_of(state))  # type: ignore[return-value]


def diff(state: S, other: Mapping[Any, Value]) -> S:
    """The entries of ``state`` whose path is not in ``other``; the same as ``state - other``.

    Example:
        >>> from plait.core.states.state_functions import diff
        >>> plait.to_pure_dict(diff(plait.State({"a": 1, "b": 2}), plait.State({"b": 3})))
        {'a': 1}
    """
    return difference(state, other)


def merge_state(state: Mapping[Any, Value], /, *states: Mapping[Any, Value], cls: type[S] = State) -> S:  # type: ignore[assignment]
    """The union of states by path; later states take precedence. A single state is returned unchanged.

    Example:
        >>> plait.to_pure_dict(plait.merge_state(plait.State({"a": 1, "b": 2}), plait.State({"b": 3})))
        {'a': 1, 'b': 3}
    """
    return cls.merge(state, *states)
