"""Splitting a graph into its structure and its values, optionally grouped by filters. (rules G31 to G36)

A graph that has not changed since the last walk is not walked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import RegistryError
from ...typing import FilterLiteral
from ..graph.flatten import RefMap, Walk, path_of
from ..graph.graphdef import GraphDef, NodeDef
from ..graph.state_leaves import nested_state
from ..graph.walks import CachedWalk, find_walk
from ..objects.clock import DETACHED
from ..objects.nodes import Kind, check_node, kind_of, not_a_node
from ..objects.state import FlatState, State, group_leaves
from ..objects.variables import Variable, copied_cells
from .graph_state import GraphState


def flatten(node: Any, /, ref_index: RefMap | None = None, *, with_paths: bool = True) -> tuple[GraphDef, Any]:
    """A graph as its graphdef and its leaves in walk order.

    Args:
        node: the root.
        ref_index: indices shared by several calls; objects from an earlier call become back-references.
        with_paths: whether to return the leaves as a ``FlatState`` of detached variables; otherwise they are a list of
            raw values.

    Raises:
        RegistryError: the root is not a node.
    """
    if kind_of(node) is Kind.STATIC:
        raise not_a_node(RegistryError, node, "flatten")
    return flattened(node, ref_index, with_paths=with_paths)


def flattened(
    node: Any, refs: RefMap | None, *, with_paths: bool, leaf_of: Callable[[Any], Any] | None = None
) -> tuple[GraphDef, Any]:
    """The same for a root of any kind; ``leaf_of`` is ``detached`` by default."""
    walk = Walk(refs)
    graphdef = walk.add(node)
    if not with_paths:
        return graphdef, [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    leaves = [(leaf_of or detached)(leaf) for leaf in walk.leaves]
    return graphdef, FlatState.from_sorted(tuple(map(path_of, walk.links)), leaves)


def detached(leaf: Any) -> Any:
    """A state leaf: a new variable with the same value, or the array itself."""
    return leaf.copy() if isinstance(leaf, Variable) else leaf


def detached_leaves(walk: CachedWalk, version: int = 0) -> list[Any]:
    """New variables with the values of a walk, whose cells have this version."""
    if walk.only_variables:
        return copied_cells(walk.types, walk.cells, version)  # type: ignore[arg-type]
    pairs = [(cls, cell) for cls, cell in zip(walk.types, walk.cells, strict=True) if cls is not None]
    variables = iter(copied_cells(*zip(*pairs, strict=True), version=version) if pairs else ())
    return [cell.raw if cls is None else next(variables) for cls, cell in zip(walk.types, walk.cells, strict=True)]


def _states(walk: CachedWalk, filters: tuple[FilterLiteral, ...], *, exhaustive: bool) -> list[Any]:
    """The state of a single root, or one for each filter."""
    leaves = detached_leaves(walk, DETACHED)
    return states_of(walk.graphdefs[0], walk.links, walk.paths, leaves, filters, exhaustive=exhaustive)


def states_of(
    root: GraphDef,
    links: Any,
    paths: Callable[[], Any],
    leaves: list[Any],
    filters: tuple[FilterLiteral, ...],
    *,
    exhaustive: bool,
) -> list[Any]:
    """The same for the leaves of a walk from this root."""
    if not filters:
        return [nested_state(root, links, leaves) if isinstance(root, NodeDef) else leaves[0]]
    groups = group_leaves(FlatState.from_sorted(tuple(paths()), leaves), filters, exhaustive=exhaustive)
    return nested_groups(groups, is_leaf=not isinstance(root, NodeDef))


def nested_groups(groups: Sequence[FlatState], *, is_leaf: bool) -> list[Any]:
    """Nested states; if the root is a leaf, the leaf itself, for the first filter that matches it. (rule G24)"""
    if is_leaf:
        return [group.leaves[0] if len(group) else State({}) for group in groups]
    return [group.to_nested_state() for group in groups]


def split(node: Any, *filters: FilterLiteral) -> Any:
    """Split a graph into its structure and its values.

    Args:
        node: a module, a variable, or a container of them. Any other value is its own state.
        *filters: one state for each; together they must match every leaf.

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
    walk = find_walk((node,))
    return (walk.graphdefs[0], *_states(walk, filters, exhaustive=True))


def state(node: Any, *filters: FilterLiteral) -> Any:
    """The values of a graph.

    Args:
        *filters: without filters the whole state is returned, with one filter one state, with several a tuple of
            states. The filters need not match every leaf; a leaf goes to the state of the first that matches it.

    Example:
        >>> plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Param)["bias"].shape
        (3,)
    """
    check_node(node, "state")
    states = _states(find_walk((node,)), filters, exhaustive=False)
    return states[0] if len(states) == 1 else tuple(states)


def graphdef(node: Any, /) -> GraphDef:
    """The structure of a graph; graphs of equal structure have the same object."""
    return find_walk((node,)).graphdefs[0]


def variables(node: Any, *filters: FilterLiteral) -> Any:
    """The live variables of a graph: a state whose leaves are the model's own ``Variable`` objects.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.variables(model)["kernel"] is model.kernel
        True
    """
    check_node(node, "variables")
    walk = Walk()
    walk.add(node)
    pairs = [
        (path_of(link), leaf) for link, leaf in zip(walk.links, walk.leaves, strict=True) if isinstance(leaf, Variable)
    ]
    flat = FlatState(pairs, sort=False)
    groups = group_leaves(flat, filters, exhaustive=False) if filters else [flat]
    results = nested_groups(groups, is_leaf=isinstance(node, Variable))
    return results[0] if len(results) == 1 else tuple(results)


def unpack(node: Any, *filters: FilterLiteral) -> Any:
    """One ``GraphState`` per filter; without filters, one for the whole graph."""
    graphdef, *states = split(node, *filters)
    bundles = tuple(GraphState(graphdef, each) for each in states)
    return bundles[0] if len(bundles) == 1 else bundles
