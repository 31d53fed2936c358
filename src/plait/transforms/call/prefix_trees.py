"""Prefix trees: objects whose leaves are prefix values, made by ``plait.prefix``. (rules X2, X28)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.graph.flatten import Walk, path_of
from ...core.graph.unflatten import Builder, raw_leaves
from ...core.objects.attributes import DATA
from ...core.objects.nodes import unwrapped
from ...core.objects.pytree import Pytree, own_info
from ...core.objects.visit import children_of, visit
from ...ground.paths import Path, describe_path
from .prefixes import FilterMapping, aliasing_error


def prefix(node: Any, filter_map: Mapping[Any, Any] | Callable[[Path, Any], Any], /) -> Any:
    """A tree like ``node`` whose leaves are prefix values, for transforms with ``graph_updates=False``.

    Args:
        node: a module, variable or pytree of them.
        filter_map: filter → value, tried in order; or a function ``(path, leaf) -> value``.

    Raises:
        FilterError: no filter matches a leaf; names its path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> axes = plait.prefix(model, {plait.PathContains("kernel"): 0, ...: None})
        >>> axes.kernel, axes.bias
        (0, None)
    """
    select = filter_map if callable(filter_map) else FilterMapping(filter_map).choose
    walk = Walk()
    graphdef = walk.add(node)
    values = [select(path_of(link), leaf) for leaf, link in zip(walk.leaves, walk.links, strict=True)]
    _check_shared(node, dict(zip(map(id, walk.leaves), values, strict=True)), select)
    tree = Builder(make_variables=raw_leaves).build(graphdef, values)
    for link in walk.links:
        _mark_as_data(tree, path_of(link))
    return tree


def _check_shared(node: Any, values: Mapping[int, Any], select: Callable[[Path, Any], Any]) -> None:
    """Raise if a variable has another value at a second path.

    Raises:
        SharingError: names both paths.
    """
    for place in visit(node):
        if place.first is not None and id(place.value) in values:
            first, second = values[id(place.value)], select(place.path, place.value)
            if first != second:
                paths = describe_path(place.first.path), describe_path(place.path)
                raise aliasing_error("prefix", type(place.value), paths, (first, second))


def _mark_as_data(tree: Any, path: Path) -> None:
    """Mark the attribute that holds the prefix value at a path as data, as what it stands for was by itself."""
    owner, place = None, None
    for key in path:
        if isinstance(tree, Pytree):
            owner, place = tree, key
        tree = unwrapped(dict(children_of(tree))[key])
    if owner is not None:
        info = own_info(owner)
        info.marks = {**(info.marks or {}), place: DATA}
