"""Prefixes: how a transform treats each part of its arguments.

A prefix is a tree prefix, as in JAX: an axis, a spec or a sharding applies to everything below it. For an object, a
*mapping object* may give its leaves different values by filter: ``StateAxes({Param: 0, ...: None})``. ``broadcast``
returns the prefix value of every leaf of the arguments. (rules X2, X3)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec, Sharding
from jax.tree_util import KeyPath

from ...core.graph.modes import check_mode
from ...core.graph.unflatten import Builder, raw_leaves
from ...core.graph.walks import Walk, is_graph_leaf, path_of
from ...core.nodes.attributes import DATA
from ...core.nodes.nodes import Kind, Place, Static, children_of, iter_variables, unwrapped, visit
from ...core.nodes.pytree import Pytree, own_info
from ...core.states.state import State, to_flat_state
from ...core.transform import Transformation
from ...core.variables.filters import PathIn, first_matches, to_predicate
from ...core.variables.variables import Variable
from ...errors import ArgumentError, FilterError, SharingError
from ...typing import FilterLiteral, Node, Tree, TreeDef, Value
from ...util.paths import Path, describe_path
from ...util.repr import Text
from ...util.words import describe_filter, describe_type, name_of_class, with_article
from .arguments import Gathered, joined


class Carry:
    """Marks, in the axes of ``scan``, values that are carried from one iteration to the next."""


class FilterMapping(Mapping[Any, Any]):
    """A mapping from filters to values, tried in order; immutable and compared by content."""

    __slots__ = ("filters", "predicates", "values_")
    filters: tuple[FilterLiteral, ...]

    def __init__(self, mapping: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /) -> None:
        if isinstance(mapping, State):
            leaves = [(path, v._cell.raw if isinstance(v, Variable) else v) for path, v in to_flat_state(mapping)]
            pairs: list[tuple[FilterLiteral, Hashable]] = [(PathIn(path), value) for path, value in leaves]
        else:
            pairs = list(mapping.items() if isinstance(mapping, Mapping) else mapping)
        filters = tuple(tuple(f) if isinstance(f, list) else f for f, _ in pairs)
        object.__setattr__(self, "filters", filters)
        object.__setattr__(self, "values_", tuple(value for _, value in pairs))
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; create a new one")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (tuple(zip(self.filters, self.values_, strict=True)),)

    def choose(self, leaves: Sequence[tuple[Path, Value]], root: Callable[[], str] = str) -> list[Hashable]:
        """For each leaf the value of the first filter that matches; ``root`` returns the name of the object.

        Raises:
            FilterError: no filter matches; names the path and the variable.
        """
        numbers = first_matches(self.predicates, leaves)
        if None not in numbers:
            return [self.values_[number] for number in numbers if number is not None]
        path, variable = leaves[numbers.index(None)]
        raise FilterError(
            f"No axis found for a leaf: no filter of a {type(self).__name__} matches it"
            if type(self) is not FilterMapping
            else "no filter matches a leaf",
            at=joined(root(), path) or describe_path(path),
            found=with_article(type(variable).__name__),
            expected=f"one of the filters {', '.join(map(describe_filter, self.filters)) or '(none)'}",
            do=f"add a filter for it, or a last filter for all other leaves: {self.as_code({...: None})}",
        )

    def as_code(self, more: Mapping[FilterLiteral, object] = {}) -> str:
        """This mapping as Python code, with more entries: ``plait.StateAxes({plait.Param: 0, ...: None})``."""
        pairs = [*zip(self.filters, self.values_, strict=True), *more.items()]
        shown = "{" + ", ".join(f"{describe_filter(key)}: {describe_filter(value)}" for key, value in pairs) + "}"
        return shown if type(self) is FilterMapping else f"{name_of_class(type(self))}({shown})"

    def map_prefix(self, path: Path, variable: Value) -> Hashable:
        """``choose`` for one leaf, by its name in Flax."""
        return self.choose([(path, variable)])[0]

    def __getitem__(self, key: Hashable) -> Any:
        for known, value in zip(self.filters, self.values_, strict=True):
            if known == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self.filters, self.values_) == (other.filters, other.values_)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), self.filters, self.values_))

    def __repr__(self) -> str:
        pairs = zip(self.filters, self.values_, strict=True)
        shown = [f"{shown_prefix(filter)}: {shown_prefix(value)}" for filter, value in pairs]
        return f"{type(self).__name__}({{{', '.join(shown)}}})"


def shown_prefix(value: object) -> str:
    """The text of a filter or of its value, with the names of classes alone."""
    return "..." if value is ... else value.__name__ if isinstance(value, type) else repr(value)


class StateAxes(FilterMapping):
    """Axes for the leaves of one module, by filter; for ``vmap``, ``pmap`` and ``scan``.

    Args:
        mapping: filter → axis (an integer, ``None``, or ``Carry`` in ``scan``), or a ``State`` of axes.

    Attributes:
        filters, axes: the keys and values, in order.

    Example:
        >>> axes = plait.StateAxes({plait.Param: 0, ...: None})
        >>> axes, axes.axes
        (StateAxes({Param: 0, ...: None}), (0, None))
    """

    __slots__ = ()

    @property
    def axes(self) -> tuple[Any, ...]:
        return self.values_


class StateSharding(FilterMapping):
    """Shardings (or specs) for the leaves of one module, by filter; for ``jit`` and ``shard_map``.

    Attributes:
        filters, shardings: the keys and values, in order.

    Example:
        >>> plait.StateSharding({plait.PathContains("kernel"): jax.P("x"), ...: None}).shardings
        (P('x',), None)
    """

    __slots__ = ()

    @property
    def shardings(self) -> tuple[Any, ...]:
        return self.values_


class PrefixByPath:
    """The prefix values of one object, leaf by leaf: a node from ``prefix``."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrefixByPath) and self.node is other.node

    def __hash__(self) -> int:
        return id(self.node)

    def choose(self, leaves: Sequence[tuple[Path, Value]], root: Callable[[], str] = str) -> list[Hashable]:
        """The value at the path of each leaf; ``root`` returns the name of the object.

        Raises:
            ArgumentError: the prefix has no such path.
        """
        return [self._at(path, root) for path, _ in leaves]

    def _at(self, path: Path, root: Callable[[], str]) -> Hashable:
        value = self.node
        for key in path:
            children = dict(children_of(value))
            if key not in children:
                raise ArgumentError(
                    "a prefix has no value for a leaf",
                    at=joined(root(), path) or describe_path(path),
                    found=f"{describe_type(self.node)} without it",
                    expected="a prefix of the same structure as the argument",
                    do="create the prefix from the object that is passed: plait.prefix(node, {...: None})",
                )
            value = unwrapped(children[key])
        return value

    def values(self) -> list[Hashable]:
        """All its values."""
        return [place.value for place in visit(self.node, children=_below_specs) if _is_value(place)]


def _is_value(place: Place) -> bool:
    """Whether a place in a prefix tree is a prefix value; ``None`` may also be an attribute of the module itself."""
    if place.value is None and place.owner is not None and isinstance(place.owner.value, Pytree):
        return (place.owner.value._pytree__info.marks or {}).get(place.key) == DATA
    return place.kind is Kind.ARRAY or place.value is None or isinstance(place.value, (PartitionSpec, Sharding))


def _below_specs(node: Node) -> Iterable[tuple[Hashable, Value]]:
    return () if isinstance(node, PartitionSpec) else children_of(node)


def choose(prefix: Hashable, leaves: Sequence[tuple[Path, Value]], root: Callable[[], str] = str) -> list[Hashable]:
    """The prefix value of each leaf, given with its path, of an object with this prefix; ``root`` returns its name."""
    is_mapping = isinstance(prefix, (FilterMapping, PrefixByPath))
    return prefix.choose(leaves, root) if is_mapping else [prefix] * len(leaves)


def prefixes_of_values(
    gathered: Gathered, prefixes: tuple[Hashable, ...], roots: Callable[[], Sequence[str]]
) -> list[Hashable]:
    """The prefix value of each input value; ``roots`` returns the names of the objects."""
    walk = gathered.walk
    if walk is None:
        return []
    if not any(isinstance(prefix, (FilterMapping, PrefixByPath)) for prefix in prefixes):
        return [prefix for prefix, count in zip(prefixes, walk.counts, strict=True) for _ in range(count)]
    found, places = [], gathered.leaf_places()
    for number, (prefix, count) in enumerate(zip(prefixes, walk.counts, strict=True)):
        leaves = [(path, leaf) for *_, path, leaf in places[len(found) : len(found) + count]]
        found += choose(prefix, leaves, lambda number=number: roots()[number])
    return found


def values_in(prefixes: Iterable[Hashable]) -> list[Hashable]:
    """All possible values of these prefixes, each once, in order."""
    found: list[Hashable] = []
    for prefix in {id(prefix): prefix for prefix in prefixes}.values():  # most are one and the same
        values = prefix.values() if isinstance(prefix, (FilterMapping, PrefixByPath)) else [prefix]
        found += [value for value in values if value not in found]
    return found


def _is_prefix_leaf(x: object) -> bool:
    return x is None or isinstance(x, (FilterMapping, State, PartitionSpec, Sharding)) or is_graph_leaf(x)


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prefix tree as a static value.

    Attributes:
        transform, argument: where it was passed, for errors: ``("vmap", "in_axes")``.
    """

    transform: Transformation
    argument: str
    treedef: TreeDef
    leaves: tuple[Hashable, ...]

    @classmethod
    def of(cls, transform: Transformation, argument: str, tree: Tree, *, updates: bool) -> Prefix:
        """Read a user's prefix.

        Raises:
            ArgumentError: it contains a module or variable, or a mapping object with ``graph_updates=False``.
        """
        pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_prefix_leaf)
        leaves = tuple(_checked_leaf(transform, argument, path, leaf, updates) for path, leaf in pairs)
        return cls(transform, argument, treedef, leaves)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Each value that is not ``None``, also in mappings from filters, with its place: ``in_axes[1]``."""
        tree = jax.tree_util.tree_unflatten(self.treedef, map(Static, self.leaves))
        pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: type(leaf) is Static)
        for path, leaf in pairs:
            for value in leaf.value.values_ if isinstance(leaf.value, FilterMapping) else [leaf.value]:
                if value is not None and not isinstance(value, PrefixByPath):
                    yield f"{self.argument}{jax.tree_util.keystr(path)}", value

    def broadcast(self, tree: Tree) -> list[Hashable]:
        """The prefix of each leaf of ``tree``; objects are leaves.

        Raises:
            ArgumentError: the prefix does not match; shows both trees.
        """
        try:
            parts = self.treedef.flatten_up_to(tree)
        except ValueError:
            raise self._mismatch(tree) from None
        found: list[Hashable] = []
        for prefix, part in zip(self.leaves, parts, strict=True):
            leaves = jax.tree_util.tree_leaves(part, is_leaf=is_graph_leaf)
            if isinstance(prefix, (FilterMapping, PrefixByPath)) and isinstance(part, State):
                found += prefix.choose([*to_flat_state(part)])
                continue
            if isinstance(prefix, (FilterMapping, PrefixByPath)) and not all(map(is_graph_leaf, leaves)):
                raise ArgumentError(
                    f"{self.transform}: {self.argument} has a mapping from filters for a plain array",
                    found=f"{prefix!r:.100} for {jax.tree_util.tree_structure(part, is_leaf=is_graph_leaf)}",
                    expected="mappings only for modules and variables",
                    do="use a value for the array, not a mapping",
                )
            found += [prefix] * len(leaves)
        return found

    def _mismatch(self, tree: Tree) -> ArgumentError:
        leaves = [Text(describe_filter(leaf)) if isinstance(leaf, type) else leaf for leaf in self.leaves]
        shown = jax.tree_util.tree_unflatten(self.treedef, leaves)
        outline = jax.tree_util.tree_map(
            lambda leaf: Text(type(leaf).__name__ if is_graph_leaf(leaf) else "*"), tree, is_leaf=is_graph_leaf
        )
        counts = ""
        if isinstance(shown, (tuple, list)) and isinstance(tree, (tuple, list)) and len(shown) != len(tree):
            counts = f" ({len(tree)} where {self.argument} has {len(shown)} entries)"
        whole, part = ("output", "output") if "out" in self.argument else ("arguments", "argument")
        return ArgumentError(
            f"{self.transform}: {self.argument} does not match the {whole}",
            found=f"{outline}{counts}",
            expected=f"a tree that starts with the structure of {self.argument} = {shown}",
            do=f"give {self.argument} one entry for each {part}, or one value for all",
        )


def _checked_leaf(transform: Transformation, argument: str, path: KeyPath, leaf: object, updates: bool) -> Hashable:
    place = f"{argument}{jax.tree_util.keystr(path)}"
    if isinstance(leaf, State):
        leaf = StateAxes(leaf) if updates else PrefixByPath(leaf)
    if isinstance(leaf, FilterMapping) and not updates:
        raise ArgumentError(
            f"{transform} with graph_updates=False does not accept a mapping from filters",
            at=place,
            found=with_article(type(leaf).__name__),
            expected="a value, or plait.prefix(node, {filter: value})",
            do=f"use plait.prefix(node, {FilterMapping(leaf).as_code()}), or graph_updates=True",
        )
    if is_graph_leaf(leaf):
        if updates or isinstance(leaf, Variable):
            raise ArgumentError(
                f"{transform} found a module or variable inside a prefix: Graph nodes are not allowed as prefixes",
                at=place,
                found=with_article(type(leaf).__name__),
                expected="an axis, a spec, or a mapping from filters",
                do=f"select its variables by filter: {transform.mapping}; "
                "a tree made by plait.prefix needs graph_updates=False",
            )
        return PrefixByPath(leaf)
    return leaf


def check_aliasing(
    name: str, treatments: Sequence[tuple[str, Node, Hashable]], known: dict[int, tuple[Hashable, str]]
) -> None:
    """Raise if a variable has two different prefixes.

    Args:
        name: the transform, for errors.
        treatments: the roots.
        known: id of a variable → (its prefix value, the path of that prefix); extended by the call.

    Raises:
        SharingError: names the variable, both paths and both prefixes.
    """
    for label, root, prefix in treatments:
        places = [*iter_variables(root)]
        values = choose(prefix, places, lambda label=label: label)
        for (path, variable), value in zip(places, values, strict=True):
            place = joined(label, path)
            before, first = known.setdefault(id(variable), (value, place))
            if before != value:
                raise _aliasing_error(name, type(variable), (first, place), (before, value))


def _aliasing_error(name: str, kind: type, places: tuple[str, str], values: tuple[Hashable, Hashable]) -> SharingError:
    """The error for a variable of this class with different prefix values at two places."""
    return SharingError(
        f"Inconsistent aliasing detected: {name} was given one variable with two different prefixes",
        at=f"{places[0]} and {places[1]} (the same {kind.__name__})",
        found=f"{shown_prefix(values[0])} at the first, {shown_prefix(values[1])} at the second",
        expected="one prefix per variable, no matter how many paths lead to it",
        do="use the same prefix for both, or pass the variable only once",
    )


def prefix(
    node: Node, filter_map: Mapping[Any, Any] | Callable[[Path, Value], Hashable], /, *, graph: bool | None = None
) -> Tree:
    """A tree like ``node`` whose leaves are prefix values, for transforms with ``graph_updates=False``.

    Args:
        node: a module, variable or pytree of them.
        filter_map: filter → value, tried in order; or a function ``(path, leaf) -> value``.
        graph: as in ``split``.

    Raises:
        FilterError: no filter matches a leaf; names its path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> axes = plait.prefix(model, {plait.PathContains("kernel"): 0, ...: None})
        >>> axes.kernel, axes.bias
        (0, None)
    """
    check_mode(node, graph)
    select = filter_map if callable(filter_map) else FilterMapping(filter_map).map_prefix
    walk = Walk()
    graphdef = walk.add(node)
    values = [select(path_of(link), leaf) for leaf, link in zip(walk.leaves, walk.links, strict=True)]
    _check_shared_leaves(node, dict(zip(map(id, walk.leaves), values, strict=True)), select)
    tree = Builder(make_variables=raw_leaves).build(graphdef, values)
    for link in walk.links:
        _mark_as_data(tree, path_of(link))
    return tree


def _check_shared_leaves(node: Node, values: Mapping[int, Hashable], select: Callable[[Path, Value], Hashable]) -> None:
    """Raise if a variable has another value at a second path.

    Raises:
        SharingError: names both paths.
    """
    for place in visit(node):
        if place.first is not None and id(place.value) in values:
            first, second = values[id(place.value)], select(place.path, place.value)
            if first != second:
                paths = describe_path(place.first.path), describe_path(place.path)
                raise _aliasing_error("prefix", type(place.value), paths, (first, second))


def _mark_as_data(tree: Tree, path: Path) -> None:
    """Mark the attribute that holds the prefix value at a path as data, as what it stands for was by itself."""
    owner, place = None, None
    for key in path:
        if isinstance(tree, Pytree):
            owner, place = tree, key
        tree = unwrapped(dict(children_of(tree))[key])
    if owner is not None:
        info = own_info(owner)
        info.marks = {**(info.marks or {}), place: DATA}
