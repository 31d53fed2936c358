"""Going through a graph: its nodes and leaves with their paths, its modules, and settings made on many at once.

(rules G53 to G56, D4)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ArgumentError, GraphError
from ..paths import Path
from ..typing import FilterLiteral
from .filters import to_predicate
from .flatten import RefMap
from .functional import children_by_key
from .module import Module, Pytree
from .nodes import Kind, kind_of
from .variables import Variable


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """Every node and leaf with its path, static values included; children first, the root last.

    Graph nodes, variables and containers come once, at their first path; numbers, strings and ``None`` at each.

    Example:
        >>> [path for path, _ in plait.iter_graph([1, plait.Param(2.0)])]
        [(0,), (1,), ()]
    """
    seen = RefMap()
    if _is_object(node):
        seen[node] = True
    stack: list[tuple[Path, Any, Iterator[tuple[Any, Any]]]] = [((), node, _children(node))]
    while stack:
        path, owner, children = stack[-1]
        for key, child in children:
            if _is_object(child):
                if child in seen:
                    continue
                seen[child] = True
            if kind_of(child) in (Kind.GRAPH, Kind.PYTREE) and child is not None:
                stack.append(((*path, key), child, _children(child)))
                break
            yield (*path, key), child
        else:
            stack.pop()
            yield path, owner


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    if kind_of(node) not in (Kind.GRAPH, Kind.PYTREE) or node is None:
        return iter(())
    children = children_by_key(node)
    from ..paths import sorted_keys

    return iter([(key, children[key]) for key in sorted_keys(children)])


def _is_object(value: Any) -> bool:
    kind = kind_of(value)
    return kind in (Kind.GRAPH, Kind.VARIABLE, Kind.REF) or (kind is Kind.PYTREE and value is not None and value != ())


def iter_modules(module: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """Every module of a graph with its path; children first, the root last."""
    for path, value in iter_graph(module):
        if isinstance(value, Module):
            yield path, value


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """The immediate children that are graph nodes or variables, with their keys.

    Raises:
        GraphError: ``node`` is no node.
    """
    if kind_of(node) not in (Kind.GRAPH, Kind.PYTREE):
        raise GraphError(
            "iter_children takes a node",
            found=f"a {type(node).__name__}",
            expected="a module or a container",
            do="pass the module itself",
        )
    for key, child in _children(node):
        if kind_of(child) in (Kind.GRAPH, Kind.VARIABLE):
            yield key, child


def iter_module_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """The immediate children that are modules, with their keys."""
    for key, child in iter_children(node):
        if isinstance(child, Pytree):
            yield key, child


def find_duplicates(node: Any, /, *, only: FilterLiteral = ...) -> list[list[Path]]:
    """Lists of paths that lead to one object: variables and graph nodes reached in two or more ways.

    Example:
        >>> shared = plait.Param(1.0)
        >>> plait.find_duplicates({"a": shared, "b": [shared]})
        [[('a',), ('b', 0)]]
    """
    predicate = to_predicate(only)
    found = RefMap()
    stack: list[tuple[Path, Any]] = [((), node)]
    while stack:
        path, value = stack.pop()
        kind = kind_of(value)
        if kind in (Kind.GRAPH, Kind.VARIABLE, Kind.REF):
            paths = found.get(value)
            if paths is not None:
                paths.append(path)
                continue
            found[value] = [path]
        if kind in (Kind.GRAPH, Kind.PYTREE):
            stack.extend(((*path, key), child) for key, child in reversed(list(_children(value))))
    return [paths for value, paths in found.items() if len(paths) > 1 and predicate(paths[0], value)]


def set_attributes(
    node: Any, filters: Sequence[FilterLiteral], attributes: dict[str, Any], *, raise_if_not_found: bool
) -> None:
    """Set existing attributes on every matching module of a graph, in place.

    Raises:
        ArgumentError: an attribute exists on no matching module, and ``raise_if_not_found`` is set.
    """
    predicates = [to_predicate(filter) for filter in filters] or [to_predicate(...)]
    missing = set(attributes)
    for path, module in list(iter_modules(node)):
        if not any(predicate(path, module) for predicate in predicates):
            continue
        for name, value in attributes.items():
            if hasattr(module, name):
                setattr(module, name, value)
                missing.discard(name)
    if missing and raise_if_not_found:
        raise ArgumentError(
            "no module has an attribute that was to be set",
            found=f"the names {sorted(missing)}",
            expected="attributes of a module that the filters match",
            do="check the names, or pass raise_if_not_found=False",
        )


def set_metadata(node: Any, /, *, only: FilterLiteral = Variable, **metadata: Any) -> None:
    """Set metadata on the live variables of a graph that match, in place."""
    predicate = to_predicate(only)
    for path, value in list(iter_graph(node)):
        if isinstance(value, Variable) and predicate(path, value):
            value.set_metadata(**metadata)
