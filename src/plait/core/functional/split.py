"""Splitting a graph into its structure and its values, optionally grouped by filters. (rules G31 to G36)

A graph that has not changed since the last walk is not walked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from ...typing import FilterLiteral, Node, Tree, Value
from ...util.paths import Path
from ..graph.graphdef import GraphDef, Link, NodeDef
from ..graph.modes import check_mode
from ..graph.state_leaves import nested_state
from ..graph.walks import CachedWalk, find_walk
from ..nodes.nodes import check_node
from ..states.state import FlatState, State, group_leaves
from ..variables.cells import DETACHED
from ..variables.variables import Variable, copied_cells

N = TypeVar("N")


def detached(leaf: Value) -> Value:
    """A state leaf: a new variable with the same value, or the array itself."""
    return leaf.copy() if isinstance(leaf, Variable) else leaf


def detached_leaves(walk: CachedWalk, version: int = 0) -> list[Value]:
    """New variables with the values of a walk, whose cells have this version."""
    if walk.only_variables:
        return copied_cells(walk.types, walk.cells, version)  # type: ignore[arg-type]
    pairs = [(cls, cell) for cls, cell in zip(walk.types, walk.cells, strict=True) if cls is not None]
    variables = iter(copied_cells(*zip(*pairs, strict=True), version=version) if pairs else ())
    return [cell.raw if cls is None else next(variables) for cls, cell in zip(walk.types, walk.cells, strict=True)]


def _states(walk: CachedWalk, filters: tuple[FilterLiteral, ...], *, exhaustive: bool) -> list[Tree]:
    """The state of a single root, or one for each filter."""
    leaves = detached_leaves(walk, DETACHED)
    return states_of(walk.graphdefs[0], walk.links, walk.paths, leaves, filters, exhaustive=exhaustive)


def states_of(
    root: GraphDef,
    links: list[Link],
    paths: Callable[[], Iterable[Path]],
    leaves: list[Value],
    filters: tuple[FilterLiteral, ...],
    *,
    exhaustive: bool,
) -> list[Tree]:
    """The same for the leaves of a walk from this root."""
    if not filters:
        return [nested_state(root, links, leaves) if isinstance(root, NodeDef) else leaves[0]]
    groups = group_leaves(FlatState.from_sorted_keys_values(tuple(paths()), leaves), filters, exhaustive=exhaustive)
    return nested_groups(groups, is_leaf=not isinstance(root, NodeDef))


def nested_groups(groups: Sequence[FlatState], *, is_leaf: bool) -> list[Tree]:
    """Nested states; if the root is a leaf, the leaf itself, for the first filter that matches it. (rule G24)"""
    if is_leaf:
        return [group.leaves[0] if len(group) else State({}) for group in groups]
    return [group.to_nested_state() for group in groups]


@overload
def split(node: N, only: FilterLiteral = ..., /, *, graph: bool | None = None) -> tuple[GraphDef[N], State]: ...
@overload
def split(
    node: N, first: FilterLiteral, second: FilterLiteral, /, *, graph: bool | None = None
) -> tuple[GraphDef[N], State, State]: ...
@overload
def split(
    node: N,
    first: FilterLiteral,
    second: FilterLiteral,
    third: FilterLiteral,
    /,
    *more: FilterLiteral,
    graph: bool | None = None,
) -> tuple[GraphDef[N], State, State, State, *tuple[State, ...]]: ...
def split(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Any:
    """Split a graph into its structure and its values.

    Args:
        node: a module, a variable, or a container of them. Any other value is its own state.
        *filters: one state for each; together they must match every leaf.
        graph: whether shared objects and cycles are allowed or raise an error (tree mode); ``None`` means the thread's
            mode.

    Returns:
        ``(graphdef, state)``, or ``(graphdef, state_1, …, state_n)`` for n filters. The variables in the states are
        detached: changing them does not change the model.

    Raises:
        FilterError: a leaf matches none of the filters.

    Example:
        >>> model = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> graphdef, params, rest = plait.split(model, plait.Param, ...)
        >>> list(params), list(rest)
        (['bias', 'scale'], ['mean', 'var'])
    """
    check_mode(node, graph)
    walk = find_walk((node,))
    return (walk.graphdefs[0], *_states(walk, filters, exhaustive=True))


@overload
def state(node: Node, only: FilterLiteral = ..., /, *, graph: bool | None = None) -> State: ...
@overload
def state(
    node: Node, first: FilterLiteral, second: FilterLiteral, /, *filters: FilterLiteral, graph: bool | None = None
) -> tuple[State, ...]: ...
def state(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Tree:
    """The values of a graph, in variables of their own: changing them does not change the model.

    Args:
        *filters: without filters the whole state is returned, with one filter one state, with several a tuple of
            states. The filters need not match every leaf; a leaf goes to the state of the first that matches it.
        graph: as in ``split``.

    Example:
        >>> plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Param)["bias"].shape
        (3,)
    """
    check_mode(node, graph)
    check_node(node, "state")
    states = _states(find_walk((node,)), filters, exhaustive=False)
    return states[0] if len(states) == 1 else tuple(states)


def graphdef(node: N, /, *, graph: bool | None = None) -> GraphDef[N]:
    """The structure of a graph; graphs of equal structure have the same object.

    Args:
        graph: as in ``split``.
    """
    check_mode(node, graph)
    return find_walk((node,)).graphdefs[0]
