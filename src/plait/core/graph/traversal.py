"""Iterating over a graph: its nodes and leaves with their paths, its modules, and setting metadata on many variables.

(rules G53 to G56, D4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...errors import GraphError
from ...typing import FilterLiteral, Node, Tree, Value
from ...util.jax_versions import Tracer
from ...util.paths import Path
from ..functional.split import nested_groups
from ..nodes.module import Module
from ..nodes.nodes import (
    Kind,
    Place,
    check_node,
    children_first,
    children_of,
    has_identity,
    iter_variables,
    kind_of,
    not_a_node,
    visit,
)
from ..nodes.pytree import Pytree
from ..states.state import FlatState, group_leaves
from ..variables.cells import ARRAYS
from ..variables.filters import to_predicate
from ..variables.variables import Variable
from .modes import check_mode
from .walks import Walk, path_of


def iter_graph(node: Node, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Value]]:
    """Every node and leaf with its path, static values included; children first, the root last.

    Graph nodes, variables and containers are yielded once, at their first path; numbers, strings and ``None`` at every
    path.

    Args:
        graph: as in ``split``.

    Example:
        >>> [path for path, _ in plait.iter_graph([1, plait.Param(2.0)])]
        [(0,), (1,), ()]
    """
    check_mode(node, graph)
    for place in children_first(visit(node, is_shared=_comes_once)):
        if place.first is None:
            yield place.path, place.value


def own_leaves(
    node: Node, only: FilterLiteral, what: str, is_asked_for: Callable[[Value], bool] = lambda leaf: True
) -> dict[Path, Value]:
    """The graph's own leaves that match a filter, by path: ``()`` for a variable as the root.

    Args:
        node: the graph.
        only: the filter.
        what: the name of what needs the graph, for the error if ``node`` is not a graph.
        is_asked_for: which leaves the filter is applied to.
    """
    check_node(node, what)
    predicate = to_predicate(only)
    walk = Walk()
    walk.add(node)
    leaves = ((path_of(link), leaf) for link, leaf in zip(walk.links, walk.leaves, strict=True) if is_asked_for(leaf))
    return {path: leaf for path, leaf in leaves if predicate(path, leaf)}


_EMPTY = id(())  # one object in the whole program, so two uses of it do not count as sharing


def _comes_once(value: Value, kind: Kind) -> bool:
    return has_identity(value, kind) or (kind is Kind.PYTREE and value is not None and id(value) != _EMPTY)


def iter_modules(module: Node, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """Every module of a graph with its path; children first, the root last.

    Args:
        graph: as in ``split``.
    """
    for path, value in iter_graph(module, graph=graph):
        if isinstance(value, Module):
            yield path, value


def iter_children(node: Node, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Node]]:
    """The immediate children that are graph nodes or variables, with their keys.

    Args:
        graph: as in ``split``.

    Raises:
        GraphError: ``node`` is not a node.
    """
    check_mode(node, graph)
    if kind_of(node) not in (Kind.GRAPH, Kind.PYTREE):
        raise not_a_node(GraphError, node, "iter_children")
    for key, child in children_of(node):
        if kind_of(child) in (Kind.GRAPH, Kind.VARIABLE):
            yield key, child


def iter_module_children(node: Node, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Node]]:
    """The immediate children that are modules, with their keys.

    Args:
        graph: as in ``split``.
    """
    for key, child in iter_children(node, graph=graph):
        if isinstance(child, Pytree):
            yield key, child


def find_duplicates(node: Node, /, *, only: FilterLiteral = ...) -> list[list[Path]]:
    """Lists of paths that lead to the same object: variables, graph nodes and arrays with two or more paths.

    Arrays inside variables and traced arrays are not listed.

    Args:
        node: the graph.
        only: a filter; of the paths of an object, the first counts always, and the others if the filter selects them.

    Example:
        >>> shared = plait.Param(1.0)
        >>> plait.find_duplicates({"a": shared, "b": [shared]})
        [[('a',), ('b', 0)]]
    """
    predicate = to_predicate(only)
    found: dict[Place, list[Path]] = {}
    for place in visit(node, is_shared=_may_be_duplicate):
        first = place.first
        if first is None:
            found[place] = []
        elif predicate(path := place.path, place.value):
            found[first] += [path]
    return [[first.path, *others] for first, others in found.items() if others]


def _may_be_duplicate(value: Value, kind: Kind) -> bool:
    return has_identity(value, kind) or (isinstance(value, ARRAYS) and not isinstance(value, Tracer))


def set_metadata(node: Node, /, *, only: FilterLiteral = Variable, **metadata: Any) -> None:
    """Set metadata, in place, on the matching variables of a graph."""
    predicate = to_predicate(only)
    chosen = [variable for path, variable in iter_variables(node) if predicate(path, variable)]
    for variable in sorted(chosen, key=lambda variable: variable._cell.structure_error is None):  # those that are raise
        variable.set_metadata(**metadata)


def variables(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Tree:
    """The live variables of a graph: a state whose leaves are the model's own ``Variable`` objects.

    Args:
        *filters, graph: as in ``state``.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.variables(model)["kernel"] is model.kernel
        True
    """
    check_mode(node, graph)
    check_node(node, "variables")
    flat = FlatState(iter_variables(node), sort=False)
    groups = group_leaves(flat, filters, exhaustive=False) if filters else [flat]
    results = nested_groups(groups, is_leaf=isinstance(node, Variable))
    return results[0] if len(results) == 1 else tuple(results)


def check_pytree(pytree: object) -> None:
    """Raise if a static attribute of a plait object contains data.

    Raises:
        AttributeStatusError: names the attribute and what was found.

    Example:
        >>> plait.check_pytree(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    """
    if isinstance(pytree, Pytree):
        pytree._pytree__graph_flatten()
