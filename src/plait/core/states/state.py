"""States: the values of a graph, nested or flat.

A ``State`` is a nested mapping from keys to leaves (detached variables, or raw values); a ``FlatState`` is the same
values as a sequence of (path, leaf), sorted by path. Both are pytrees. (rules G47 to G50)

A state that belongs to a graph, such as the state of an optimizer, can be **tracked**: no other object shares its
nested dicts, and every write to it or to a view of it advances the structure clock. So a walk need not compare them in
each call. Any access that could bypass the tracking (``raw_mapping``, or a nested mapping stored without a copy) ends
it permanently.

Nested mappings as (path, leaf) pairs, and back, are at the beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax.tree_util import DictKey

from ...errors import FilterError, GraphError
from ...typing import FilterLiteral, Tree, Value
from ...util.paths import Path, describe_path, sort_key, sorted_keys
from ...util.repr import Text, render_mapping, repr_fields
from ...util.words import describe_filter, first_few
from ..nodes.nodes import register_pytree_node_type, set_item
from ..variables.cells import Stamp, mark_changed, metadata_key
from ..variables.filters import resolve_filters
from ..variables.variables import Variable


def iter_leaves(mapping: Mapping[Any, Value]) -> Iterator[tuple[Path, Value]]:
    """The leaves with their paths, in the order of paths. Variables are leaves."""
    stack: list[tuple[Path, Mapping[Any, Value], Iterator[Hashable]]] = [((), mapping, iter(sorted_keys(mapping)))]
    while stack:
        path, owner, keys = stack[-1]
        for key in keys:
            value = owner[key]
            if isinstance(value, Mapping) and not isinstance(value, Variable):
                stack.append(((*path, key), value, iter(sorted_keys(value))))
                break
            yield (*path, key), value
        else:
            stack.pop()


def nested(items: Iterable[tuple[Path, Value]]) -> dict[Any, Value]:
    """The nested dict of (path, leaf) pairs.

    Raises:
        GraphError: a path is empty, or a prefix of another path.
    """
    root: dict[Any, Value] = {}
    for path, leaf in items:
        if not path:
            raise GraphError(
                "a leaf has an empty path",
                found=f"{leaf!r:.80} at ()",
                expected="paths with at least one key",
                do="use a single leaf as it is; it does not need nesting",
            )
        owner = root
        for key in path[:-1]:
            owner = owner.setdefault(key, {})
            if type(owner) is not dict:
                raise _overlap(path)
        if type(owner.get(path[-1])) is dict:
            raise _overlap(path)
        owner[path[-1]] = leaf
    return root


def _overlap(path: Path) -> GraphError:
    return GraphError(
        "one path goes through the leaf of another path",
        at=describe_path(path),
        found="a leaf and a nested state at the same path",
        expected="leaves only at the end of a path",
        do="rename one of the two",
    )


S = TypeVar("S", bound="State")


class _Tracking(Stamp):
    """The stamp that a tracked state shares with its views."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        super().__init__()
        self.ended = False


class _Grouped:
    """The methods of nested and flat states that take filters."""

    __slots__ = ()

    def split(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One state per filter; the filters must match every leaf."""
        return grouped(self, (first, *filters), exhaustive=True)

    def filter(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One state per filter, without the leaves that match none of them."""
        return grouped(self, (first, *filters), exhaustive=False)


class State(_Grouped, MutableMapping[Any, Value]):
    """A nested mapping from attribute names and indices to leaves.

    ``state[key]`` is a leaf, or a writable view of a nested mapping; ``state.key`` is the same for string keys. A state
    is a pytree: ``jax.tree.map(f, state)`` keeps the classes and metadata of its variables.

    Args:
        mapping: a nested mapping, or an iterable of (key, value) pairs.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> state = plait.state(model)
        >>> list(state), state["bias"].shape, state.kernel.shape
        (['bias', 'kernel'], (3,), (2, 3))
    """

    __slots__ = ("_mapping", "_tracking")
    _mapping: dict[Any, Value]
    _tracking: _Tracking | None

    def __init__(self, mapping: Any = (), /, *, _copy: bool = True) -> None:
        if _copy:
            items = mapping.items() if isinstance(mapping, Mapping) else mapping
            mapping = {key: _plain(value) for key, value in items}
        _set_mapping(self, mapping)
        _set_tracking(self, None)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls)

    @property
    def raw_mapping(self) -> dict[Any, Value]:
        """The nested dict underneath, not a copy."""
        self._end_tracking()
        return self._mapping

    def _end_tracking(self) -> None:
        tracking = self._tracking
        if tracking is not None and not tracking.ended:
            tracking.ended = True
            mark_changed(tracking)

    def _changed(self) -> None:
        if self._tracking is not None:
            mark_changed(self._tracking)

    def __getitem__(self, key: Any) -> Any:
        value = self._mapping[key]
        if type(value) is dict:  # as a state that writes to it, and reports writes
            return _around(type(self), value, self._tracking)
        return value

    def __setitem__(self, key: Any, value: Value) -> None:
        value = _plain(value)
        if type(value) is dict:
            self._end_tracking()
        self._mapping[key] = value
        self._changed()

    def __delitem__(self, key: Any) -> None:
        del self._mapping[key]
        self._changed()

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_mapping", "_tracking"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the state has no entry {name!r}; it has {[*map(str, self._mapping)]}") from None

    def __setattr__(self, name: str, value: Value) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            if not isinstance(other, Mapping):
                return NotImplemented
            other = State(other)
        first, second = to_flat_state(self), to_flat_state(other)
        if first.paths != second.paths:
            return False
        return all(_same_leaf(a, b) for a, b in zip(first.leaves, second.leaves, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __or__(self: S, other: State) -> S:
        return type(self).merge(self, other) if other else self

    def __sub__(self: S, other: State) -> S:
        return difference(self, other)

    def __repr__(self) -> str:
        return _state_repr(type(self).__name__, self._mapping)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return render_mapping(type(self), self._mapping, path, subtree_renderer)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._mapping,), tracking_of(self) and True

    def __setstate__(self, is_tracked: bool) -> None:
        if is_tracked:
            _set_tracking(self, _Tracking())

    def __copy__(self: S) -> S:
        return type(self)(self._mapping)

    # The same as the functions below, as methods.

    def map(self: S, f: Callable[[Path, Value], Value]) -> S:
        """``f(path, leaf)`` on every leaf."""
        return from_flat_state(((path, f(path, leaf)) for path, leaf in to_flat_state(self)), cls=type(self))

    def flat_state(self) -> FlatState:
        """The state as a sorted sequence of (path, leaf)."""
        return to_flat_state(self)

    @classmethod
    def from_flat_path(cls: type[S], flat: Any, /) -> S:
        """A nested state from a mapping or sequence of (path, leaf)."""
        return from_flat_state(flat, cls=cls)

    @classmethod
    def merge(cls: type[S], state: Mapping[Any, Value], /, *states: Mapping[Any, Value]) -> S:
        """The union by path; later states take precedence."""
        if not states and isinstance(state, cls):
            return state
        union: dict[Path, Value] = {}
        for each in (state, *states):
            union.update(to_flat_state(each))
        return from_flat_state(union, cls=cls)


_set_mapping: Callable[[State, dict[Any, Value]], None] = State.__dict__["_mapping"].__set__
_set_tracking: Callable[[State, _Tracking | None], None] = State.__dict__["_tracking"].__set__


_new: Callable[[type], Any] = object.__new__


def _around(cls: type[S], mapping: dict[Any, Value], tracking: _Tracking | None) -> S:
    """A state with this mapping, not a copy."""
    state = _new(cls)
    _set_mapping(state, mapping)
    _set_tracking(state, tracking)
    return state


def tracked(state: S) -> S:
    """A tracked state with the same leaves: nested dicts are copied, leaves are not."""
    return _around(type(state), _own(state._mapping), _Tracking())


def _own(mapping: Mapping[Any, Value]) -> dict[Any, Value]:
    """A copy of the nested mappings, including nested states."""
    return {key: _own(value) if type(value) is dict else value for key, value in mapping.items()}


def tracking_of(state: State) -> Stamp | None:
    """The stamp that records every change of a state's nesting, if there is one."""
    tracking = state._tracking
    return None if tracking is None or tracking.ended else tracking


def _plain(value: Value) -> Value:
    """Nested states and mappings are stored as plain dicts."""
    if isinstance(value, State):
        return value.raw_mapping
    if isinstance(value, Mapping) and not isinstance(value, Variable):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _state_repr(name: str, mapping: Mapping[Any, Value]) -> str:
    entries = [(f"{key!r}: ", mapping[key]) for key in sorted_keys(mapping)]
    fields = [(key, Text(_state_repr("", item)) if type(item) is dict else item) for key, item in entries]
    return repr_fields(name, fields, brackets="({})" if name else "{}", separator="", multiline=True)


def _sorts_as_dicts(mapping: dict[Any, Value]) -> bool:
    """Whether the keys of each mapping, down to the leaves, can be compared with each other."""
    found = [mapping]
    add = found.append
    try:
        for each in found:
            sorted(each)
            for value in each.values():
                if type(value) is dict:
                    add(value)
    except TypeError:
        return False
    return True


def tree_entries(state: State) -> tuple[list[Hashable], list[Value]]:
    """The keys and values of a state in the order in which JAX sees them.

    JAX sees nested mappings as dicts, which it flattens at the speed of C. If it cannot sort the keys of a mapping
    below, they are states instead.
    """
    mapping = state._mapping
    if _sorts_as_dicts(mapping):
        keys = sorted(mapping)
        return keys, [*map(mapping.__getitem__, keys)]
    return _children(state)


def tree_state(cls: type[S], keys: Iterable[Hashable], values: Iterable[Value]) -> S:
    """The state of these keys and values; the inverse of ``tree_entries``."""
    mapping = dict(zip(keys, values, strict=True))
    if not _STATES.isdisjoint(map(type, mapping.values())):
        mapping = {key: _plain(value) if isinstance(value, State) else value for key, value in mapping.items()}
    return _around(cls, mapping, None)


def _children(state: State) -> tuple[list[Hashable], list[Value]]:
    keys = sorted_keys(state._mapping, type(state).__name__)
    return keys, [state[key] for key in keys]


_STATES: set[type] = set()  # State and its subclasses: asking an abstract class about each value takes longer


def _register(cls: type[State]) -> None:
    _STATES.add(cls)

    def flatten(state: State) -> Any:
        keys, values = tree_entries(state)
        return values, tuple(keys)

    def flatten_with_keys(state: State) -> Any:
        keys, values = tree_entries(state)
        return [*zip(map(DictKey, keys), values, strict=True)], tuple(keys)

    unflatten = functools.partial(tree_state, cls)
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def graph_flatten(state: State) -> Any:
        keys, values = _children(state)
        return list(zip(keys, values, strict=True)), None

    register_pytree_node_type(
        cls,
        graph_flatten,
        lambda items, _: tracked(State(items)) if cls is State else cls(items),
        set_key=set_item,
        pop_key=State.pop,
    )


_register(State)


class FlatState(_Grouped, Sequence[tuple[Path, Value]]):
    """An immutable sequence of (path, leaf).

    For JAX it is one node whose children are the leaves. So the flat state of values, ``as_pure(state.flat_state())``,
    goes into ``jax.jit`` and comes out in the time of a list of arrays; a ``State`` takes up to three times that.

    Args:
        items: the pairs.
        sort: whether to sort them by path; ``False`` means that they are already sorted.

    Example:
        >>> flat = plait.FlatState([(("b",), 2.0), (("a", 0), 1.0)], sort=True)
        >>> flat.paths, flat[0], flat.to_nested_state()["a"][0]
        ((('a', 0), ('b',)), (('a', 0), 1.0), 1.0)
    """

    __slots__ = ("leaves", "paths")

    paths: tuple[Path, ...]
    leaves: list[Value]

    def __init__(self, items: Iterable[tuple[Path, Value]], /, *, sort: bool) -> None:
        pairs = list(items)
        if sort:
            pairs.sort(key=lambda pair: tuple(map(sort_key, pair[0])))
        object.__setattr__(self, "paths", tuple(tuple(path) for path, _ in pairs))
        object.__setattr__(self, "leaves", [leaf for _, leaf in pairs])

    @classmethod
    def from_sorted_keys_values(cls, paths: tuple[Path, ...], leaves: list[Value]) -> FlatState:
        """From paths and leaves that are already sorted."""
        flat = object.__new__(cls)
        object.__setattr__(flat, "paths", paths)
        object.__setattr__(flat, "leaves", leaves)
        return flat

    def __setattr__(self, name: str, value: Value) -> None:
        raise AttributeError(f"FlatState.{name} cannot be assigned: flat states are immutable")

    @overload
    def __getitem__(self, index: int) -> tuple[Path, Value]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return FlatState.from_sorted_keys_values(self.paths[index], self.leaves[index])
        return self.paths[index], self.leaves[index]

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[Path, Value]]:
        return iter(zip(self.paths, self.leaves, strict=True))

    def __repr__(self) -> str:
        pairs = [(f"{path!r}: ", leaf) for path, leaf in self]
        return repr_fields("FlatState", pairs, brackets="([])", separator="", multiline=True)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return render_mapping(type(self), dict(self), None, subtree_renderer)  # its paths are no keys

    def __reduce__(self) -> tuple[object, ...]:
        return FlatState.from_sorted_keys_values, (self.paths, self.leaves)

    @staticmethod
    def merge(flat: FlatState, /, *flats: FlatState) -> FlatState:
        """The union by path; later states take precedence."""
        if not flats:
            return flat
        union: dict[Path, Value] = {}
        for each in (flat, *flats):
            union.update(zip(each.paths, each.leaves, strict=True))
        return FlatState(union.items(), sort=True)

    def to_nested_state(self) -> State:
        """The leaves as a nested state."""
        return from_flat_state(self)


jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: ([*zip(map(DictKey, flat.paths), flat.leaves, strict=True)], flat.paths),
    lambda paths, leaves: FlatState.from_sorted_keys_values(paths, list(leaves)),
    lambda flat: (flat.leaves, flat.paths),
)


def group_leaves(flat: FlatState, filters: Sequence[FilterLiteral], *, exhaustive: bool) -> list[FlatState]:
    """Assign each leaf to the first filter that matches; one flat state per filter. (rule G52)

    Raises:
        FilterError: a leaf matches no filter, and ``exhaustive`` is set.
    """
    predicates = resolve_filters(filters)
    groups: list[tuple[list[Path], list[Value]]] = [([], []) for _ in predicates]
    left_over = []
    for path, leaf in flat:
        for predicate, (paths, leaves) in zip(predicates, groups, strict=True):
            if predicate(path, leaf):
                paths.append(path)
                leaves.append(leaf)
                break
        else:
            left_over.append((path, leaf))
    if exhaustive and left_over:
        raise FilterError(
            "Non-exhaustive filters: some leaves match none of them",
            at=first_few([f"{describe_path(path)} ({type(leaf).__name__})" for path, leaf in left_over]),
            found=f"{len(left_over)} of {len(flat)} leaves not matched by "
            + (", ".join(map(describe_filter, filters)) or "no filter"),
            expected="filters that together match every leaf",
            do="add `...` as the last filter, for all other leaves: plait.split(model, plait.Param, ...)",
        )
    return [FlatState.from_sorted_keys_values(tuple(paths), leaves) for paths, leaves in groups]


def to_flat_state(state: Mapping[Any, Value]) -> FlatState:
    """The leaves of a nested state with their paths, sorted by path.

    Example:
        >>> plait.to_flat_state(plait.State({"b": {0: 1.0}, "a": 2.0})).paths
        (('a',), ('b', 0))
    """
    if isinstance(state, State):
        state = state._mapping
    return FlatState(iter_leaves(state), sort=False)


def from_flat_state(
    flat_state: FlatState | Mapping[Path, Value] | Iterable[tuple[Path, Value]],
    *,
    cls: type[S] = State,  # type: ignore[assignment]
) -> S:
    """Convert a flat state to a nested one.

    Args:
        flat_state: a ``FlatState``, a mapping from paths to leaves, or pairs of the two.
        cls: the class of the result.

    Raises:
        GraphError: one path is a prefix of another.

    Example:
        >>> plait.from_flat_state({("a", 0): 1.0})["a"][0]
        1.0
    """
    items = flat_state.items() if isinstance(flat_state, Mapping) else flat_state
    return cls(nested(items), **({"_copy": False} if issubclass(cls, State) else {}))


def grouped(state: Tree, filters: tuple[FilterLiteral, ...], *, exhaustive: bool) -> Tree:
    """One state for each filter, flat or nested like ``state``; for a single filter, the state itself."""
    is_flat = isinstance(state, FlatState)
    groups = group_leaves(state if is_flat else to_flat_state(state), filters, exhaustive=exhaustive)
    states = groups if is_flat else [from_flat_state(group, cls=class_of(state)) for group in groups]
    return states[0] if len(states) == 1 else tuple(states)


def class_of(state: Tree) -> type[State]:
    return type(state) if isinstance(state, State) else State


def difference(state: Tree, other: Mapping[Any, Value]) -> Tree:
    known = set(to_flat_state(other).paths)
    return from_flat_state(
        ((path, leaf) for path, leaf in to_flat_state(state) if path not in known), cls=class_of(state)
    )


def _same_leaf(first: Value, second: Value) -> bool:
    """Whether class, metadata and values are equal."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Variable):
        if metadata_key(first._cell) != metadata_key(second._cell):
            return False
        first, second = first.get_raw_value(), second.get_raw_value()
    (leaves, treedef), (others, other) = jax.tree.flatten(first), jax.tree.flatten(second)
    return treedef == other and all(map(_same_array, leaves, others))


def _same_array(first: Value, second: Value) -> bool:
    if first is second:
        return True
    is_like = all(getattr(first, name, None) == getattr(second, name, None) for name in ("shape", "dtype"))
    return is_like and bool(np.all(first == second))
