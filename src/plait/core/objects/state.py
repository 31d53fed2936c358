"""States: the values of a graph, nested or flat.

A ``State`` is a nested mapping from keys to leaves (detached variables, or raw values); a ``FlatState`` is the same as
a sequence of (path, leaf), sorted by path. Both are pytrees. (rules G47 to G50)

A state that belongs to a graph, as those of an optimizer do, can be **tracked**: its nested dicts are its own, every
write to it or to a view on it moves the structure clock, and so a walk need not compare them at each call. Whatever
could write past it (``raw_mapping``, or a nested mapping stored without a copy) ends that for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from ..._compat import is_mutable_array
from ...errors import ArgumentTypeError, FilterError, GraphError
from ...paths import Path, describe_path, sort_key, sorted_keys
from ...typing import FilterLiteral
from ...words import describe_filter, describe_type
from .clock import Stamp, mark_changed
from .filters import resolve_filters
from .nodes import register_pytree_node_type
from .repr import render_tree, repr_fields, repr_leaf
from .variables import Variable, metadata_key

S = TypeVar("S", bound="State")


class _Tracking(Stamp):
    """The stamp that a tracked state shares with its views."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        super().__init__()
        self.ended = False


class State(MutableMapping[Any, Any]):
    """A nested mapping from attribute names and indices to leaves.

    ``state[key]`` is a leaf, or a view on a nested mapping whose writes go through; ``state.key`` is the same for
    string keys. A state is a pytree: ``jax.tree.map(f, state)`` keeps classes and metadata of its variables.

    Args:
        mapping: a nested mapping, or an iterable of (key, value) pairs.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> state = plait.state(model)
        >>> list(state), state["bias"].shape, state.kernel.shape
        (['bias', 'kernel'], (3,), (2, 3))
    """

    __slots__ = ("_mapping", "_tracking")
    _mapping: dict[Any, Any]
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
    def raw_mapping(self) -> dict[Any, Any]:
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
        return self._view(value) if type(value) is dict else value

    def _view(self: S, mapping: dict[Any, Any]) -> S:
        """A nested mapping as a state whose writes go through, and are told."""
        return _around(type(self), mapping, self._tracking)

    def __setitem__(self, key: Any, value: Any) -> None:
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

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        first, second = to_flat_state(self), to_flat_state(other)
        if first.paths != second.paths:
            return False
        return all(_same_leaf(a, b) for a, b in zip(first.leaves, second.leaves, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __or__(self: S, other: State) -> S:
        return merge_state(self, other, cls=type(self)) if other else self

    def __sub__(self: S, other: State) -> S:
        return _difference(self, other)

    def __repr__(self) -> str:
        return _state_repr(type(self).__name__, self._mapping)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return render_tree(type(self), {"mapping": self._mapping}, path, subtree_renderer)

    def __reduce__(self) -> Any:
        return type(self), (self._mapping,), tracking_of(self) and True

    def __setstate__(self, is_tracked: bool) -> None:
        if is_tracked:
            _set_tracking(self, _Tracking())

    def __copy__(self: S) -> S:
        return type(self)(self._mapping)

    # The same as the functions below, as methods.

    def map(self: S, f: Callable[[Path, Any], Any]) -> S:
        """``f(path, leaf)`` on every leaf."""
        return map_state(f, self)

    def flat_state(self) -> FlatState:
        """The state as a sorted sequence of (path, leaf)."""
        return to_flat_state(self)

    @classmethod
    def from_flat_path(cls: type[S], flat: Any, /) -> S:
        """A nested state from a mapping or sequence of (path, leaf)."""
        return from_flat_state(flat, cls=cls)

    def split(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One state per filter; the filters must cover every leaf."""
        return split_state(self, first, *filters)

    def filter(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One state per filter; leaves that none matches are left out."""
        return filter_state(self, first, *filters)

    @classmethod
    def merge(cls: type[S], state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> S:
        """The union by path; later states win."""
        return merge_state(state, *states, cls=cls)


_set_mapping: Callable[[Any, dict[Any, Any]], None] = State.__dict__["_mapping"].__set__
_set_tracking: Callable[[Any, _Tracking | None], None] = State.__dict__["_tracking"].__set__


_new: Callable[[Any], Any] = object.__new__


def _around(cls: type[S], mapping: dict[Any, Any], tracking: _Tracking | None) -> S:
    """A state around this very mapping."""
    state = _new(cls)
    _set_mapping(state, mapping)
    _set_tracking(state, tracking)
    return state


def tracked(state: S) -> S:
    """A tracked state with the same leaves: nested dicts are copied, leaves are not."""
    return _around(type(state), _own(state._mapping), _Tracking())


def _own(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """The nesting copied, also that of states in it."""
    own = {}
    for key, value in mapping.items():
        if isinstance(value, State):
            value = value._mapping
        own[key] = _own(value) if type(value) is dict else value
    return own


def tracking_of(state: State) -> Stamp | None:
    """The stamp that tells every change of a state's nesting, if there is one."""
    tracking = state._tracking
    return None if tracking is None or tracking.ended else tracking


def _plain(value: Any) -> Any:
    """Nested states and mappings are stored as plain dicts."""
    if isinstance(value, State):
        return value.raw_mapping
    if isinstance(value, Mapping) and not isinstance(value, Variable):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _same_leaf(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, Variable):
        if metadata_key(first._cell) != metadata_key(second._cell):
            return False
        first, second = first.get_raw_value(), second.get_raw_value()
    if first is second:
        return True
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    return all(_same_array(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _same_array(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if getattr(first, "shape", None) != getattr(second, "shape", None):
        return False
    if getattr(first, "dtype", None) != getattr(second, "dtype", None):
        return False
    return bool(np.all(first == second))


def _state_repr(name: str, mapping: Mapping[Any, Any]) -> str:
    lines = []
    for key in sorted_keys(mapping):
        value = mapping[key]
        text = _state_repr("", value) if type(value) is dict else repr_leaf(value)
        lines.append(f"  {key!r}: " + text.replace("\n", "\n  "))
    body = ",\n".join(lines)
    opening, closing = ("({", "})") if name else ("{", "}")
    return f"{name}{opening}\n{body}\n{closing}" if lines else f"{name}{opening}{closing}"


def _sorts_as_dicts(mapping: dict[Any, Any]) -> bool:
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


def _register(cls: type[State]) -> None:
    def children(state: State) -> tuple[list[Any], list[Any]]:
        keys = sorted_keys(state._mapping, cls.__name__)
        return keys, [state[key] for key in keys]

    # To JAX the nested mappings are the dicts that they are, which it goes through at the speed of C. Where it could
    # not sort the keys of one below, they are states.
    def parts(state: State) -> tuple[list[Any], list[Any]]:
        mapping = state._mapping
        if _sorts_as_dicts(mapping):
            keys = sorted(mapping)
            return keys, [*map(mapping.__getitem__, keys)]
        return children(state)

    def flatten(state: State) -> Any:
        keys, values = parts(state)
        return values, tuple(keys)

    def flatten_with_keys(state: State) -> Any:
        keys, values = parts(state)
        return [*zip(map(DictKey, keys), values, strict=True)], tuple(keys)

    def unflatten(keys: tuple[Any, ...], values: Iterable[Any]) -> State:
        mapping = dict(zip(keys, values, strict=True))
        for key, value in mapping.items():
            if isinstance(value, State):
                mapping[key] = value.raw_mapping
        return _around(cls, mapping, None)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def graph_flatten(state: State) -> Any:
        keys, values = children(state)
        return list(zip(keys, values, strict=True)), None

    register_pytree_node_type(
        cls,
        graph_flatten,
        lambda items, _: tracked(State(items)) if cls is State else cls(items),
        set_key=_set_entry,
        pop_key=_pop_entry,
    )


def _pop_entry(state: State, key: Any) -> Any:
    value = state[key]
    del state[key]
    return value


def _set_entry(state: State, key: Any, value: Any) -> None:
    current = state._mapping.get(key)
    if isinstance(current, Variable) and isinstance(value, Variable):
        current.update_from_state(value)
    else:
        state[key] = value


_register(State)


class FlatState(Sequence[tuple[Path, Any]]):
    """An immutable sequence of (path, leaf).

    Args:
        items: the pairs.
        sort: whether to sort them by path; ``False`` says that they are sorted already.

    Example:
        >>> flat = plait.FlatState([(("b",), 2.0), (("a", 0), 1.0)], sort=True)
        >>> flat.paths, flat[0], flat.to_nested_state()["a"][0]
        ((('a', 0), ('b',)), (('a', 0), 1.0), 1.0)
    """

    __slots__ = ("leaves", "paths")

    paths: tuple[Path, ...]
    leaves: list[Any]

    def __init__(self, items: Iterable[tuple[Path, Any]], /, *, sort: bool) -> None:
        pairs = list(items)
        if sort:
            pairs.sort(key=lambda pair: tuple(map(sort_key, pair[0])))
        object.__setattr__(self, "paths", tuple(tuple(path) for path, _ in pairs))
        object.__setattr__(self, "leaves", [leaf for _, leaf in pairs])

    @classmethod
    def from_sorted(cls, paths: tuple[Path, ...], leaves: list[Any]) -> FlatState:
        """From paths and leaves that are in order already."""
        flat = object.__new__(cls)
        object.__setattr__(flat, "paths", paths)
        object.__setattr__(flat, "leaves", leaves)
        return flat

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"FlatState.{name} cannot be assigned: flat states are immutable")

    @overload
    def __getitem__(self, index: int) -> tuple[Path, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return FlatState.from_sorted(self.paths[index], self.leaves[index])
        return self.paths[index], self.leaves[index]

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        return iter(zip(self.paths, self.leaves, strict=True))

    def __repr__(self) -> str:
        pairs = [(f"{path!r}: ", leaf) for path, leaf in self]
        return repr_fields("FlatState", pairs, brackets="([])", separator="", multiline=True)

    def __reduce__(self) -> Any:
        return FlatState.from_sorted, (self.paths, self.leaves)

    def split(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One flat state per filter; the filters must cover every leaf."""
        groups = group_leaves(self, (first, *filters), exhaustive=True)
        return groups[0] if not filters else tuple(groups)

    def filter(self, first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
        """One flat state per filter; leaves that none matches are left out."""
        groups = group_leaves(self, (first, *filters), exhaustive=False)
        return groups[0] if not filters else tuple(groups)

    @staticmethod
    def merge(flat: FlatState, /, *flats: FlatState) -> FlatState:
        """The union by path; later ones win."""
        if not flats:
            return flat
        union: dict[Path, Any] = {}
        for each in (flat, *flats):
            union.update(zip(each.paths, each.leaves, strict=True))
        return FlatState(union.items(), sort=True)

    def to_nested_state(self) -> State:
        """The same as a nested state."""
        return from_flat_state(self)


jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: ([(SequenceKey(i), leaf) for i, leaf in enumerate(flat.leaves)], flat.paths),
    lambda paths, leaves: FlatState.from_sorted(paths, list(leaves)),
    lambda flat: (flat.leaves, flat.paths),
)


def group_leaves(flat: FlatState, filters: Sequence[FilterLiteral], *, exhaustive: bool) -> list[FlatState]:
    """Give each leaf to the first filter that matches; one flat state per filter. (rule G52)

    Raises:
        FilterError: a leaf was left over and ``exhaustive`` is set.
    """
    predicates = resolve_filters(filters)
    groups: list[tuple[list[Path], list[Any]]] = [([], []) for _ in predicates]
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
        shown = ", ".join(f"{describe_path(path)} ({type(leaf).__name__})" for path, leaf in left_over[:8])
        more = f" and {len(left_over) - 8} more" if len(left_over) > 8 else ""
        raise FilterError(
            "Non-exhaustive filters: some leaves match none of them",
            at=shown + more,
            found=f"{len(left_over)} of {len(flat)} leaves left over by "
            + (", ".join(map(describe_filter, filters)) or "no filter"),
            expected="filters that together match every leaf",
            do="add `...` as the last filter, which takes the rest: plait.split(model, plait.Param, ...)",
        )
    return [FlatState.from_sorted(tuple(paths), leaves) for paths, leaves in groups]


def _pairs(mapping: Mapping[Any, Any]) -> Iterator[tuple[Path, Any]]:
    stack: list[tuple[Path, Any, Iterator[Any]]] = [((), mapping, iter(sorted_keys(mapping)))]
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


def to_flat_state(state: Mapping[Any, Any], /) -> FlatState:
    """The leaves of a nested state with their paths, sorted by path.

    Example:
        >>> plait.to_flat_state(plait.State({"b": {0: 1.0}, "a": 2.0})).paths
        (('a',), ('b', 0))
    """
    if isinstance(state, State):
        state = state._mapping
    return FlatState(_pairs(state), sort=False)


def from_flat_state(flat: FlatState | Mapping[Path, Any] | Iterable[tuple[Path, Any]], /, *, cls: type[S] = State) -> S:  # type: ignore[assignment]
    """The nested state of a flat one.

    Args:
        flat: a ``FlatState``, a mapping from paths to leaves, or pairs of the two.
        cls: the class of the result.

    Raises:
        GraphError: one path is the beginning of another.

    Example:
        >>> plait.from_flat_state({("a", 0): 1.0})["a"][0]
        1.0
    """
    items = flat.items() if isinstance(flat, Mapping) else flat
    root: dict[Any, Any] = {}
    for path, leaf in items:
        if not path:
            raise GraphError(
                "a leaf has the empty path",
                found=f"{leaf!r:.80} at ()",
                expected="paths with at least one key",
                do="a single leaf is its own state; it needs no nesting",
            )
        owner = root
        for key in path[:-1]:
            owner = owner.setdefault(key, {})
            if type(owner) is not dict:
                raise _overlap(path)
        if type(owner.get(path[-1])) is dict:
            raise _overlap(path)
        owner[path[-1]] = leaf
    return cls(root, _copy=False)


def _overlap(path: Path) -> GraphError:
    return GraphError(
        "one path leads through the leaf of another",
        at=describe_path(path),
        found="a leaf and a nested state at the same place",
        expected="leaves only at the ends of paths",
        do="rename one of the two",
    )


def split_state(state: Mapping[Any, Any], first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
    """One state per filter; the filters must cover every leaf. One filter gives one state, several a tuple.

    Raises:
        FilterError: a leaf matches none of the filters; the message names its path.

    Example:
        >>> state = plait.state(plait.BatchNorm(3, rngs=plait.Rngs(0)))
        >>> params, rest = plait.split_state(state, plait.Param, ...)
        >>> list(params), list(rest)
        (['bias', 'scale'], ['mean', 'var'])
    """
    groups = group_leaves(to_flat_state(state), (first, *filters), exhaustive=True)
    states = [from_flat_state(group, cls=_class_of(state)) for group in groups]
    return states[0] if not filters else tuple(states)


def filter_state(state: Mapping[Any, Any], first: FilterLiteral, /, *filters: FilterLiteral) -> Any:
    """One state per filter; leaves that none matches are left out. One filter gives one state, several a tuple.

    Example:
        >>> list(plait.filter_state(plait.state(plait.BatchNorm(3, rngs=plait.Rngs(0))), plait.BatchStat))
        ['mean', 'var']
    """
    groups = group_leaves(to_flat_state(state), (first, *filters), exhaustive=False)
    states = [from_flat_state(group, cls=_class_of(state)) for group in groups]
    return states[0] if not filters else tuple(states)


def _class_of(state: Any) -> type[State]:
    return type(state) if isinstance(state, State) else State


def merge_state(state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: type[S] = State) -> S:  # type: ignore[assignment]
    """The union of states by path; later ones win. A single state is returned unchanged.

    Example:
        >>> plait.to_pure_dict(plait.merge_state(plait.State({"a": 1, "b": 2}), plait.State({"b": 3})))
        {'a': 1, 'b': 3}
    """
    if not states and isinstance(state, cls):
        return state
    union: dict[Path, Any] = {}
    for each in (state, *states):
        union.update(to_flat_state(each))
    return from_flat_state(union, cls=cls)


def map_state(f: Callable[[Path, Any], Any], state: S, /) -> S:
    """``f(path, leaf)`` on every leaf, in a new state.

    Example:
        >>> plait.to_pure_dict(plait.map_state(lambda path, leaf: path, plait.State({"a": {0: 1.0}})))
        {'a': {0: ('a', 0)}}
    """
    flat = to_flat_state(state)
    return from_flat_state(((path, f(path, leaf)) for path, leaf in flat), cls=_class_of(state))  # type: ignore[return-value]


def diff(state: S, other: Mapping[Any, Any], /) -> S:
    """The entries of ``state`` whose path is not in ``other``; the same as ``state - other``.

    Example:
        >>> plait.to_pure_dict(plait.statelib.diff(plait.State({"a": 1, "b": 2}), plait.State({"b": 3})))
        {'a': 1}
    """
    return _difference(state, other)


def _difference(state: Any, other: Mapping[Any, Any]) -> Any:
    known = set(to_flat_state(other).paths)
    return from_flat_state(
        ((path, leaf) for path, leaf in to_flat_state(state) if path not in known), cls=_class_of(state)
    )


def to_pure_dict(state: Mapping[Any, Any], /, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """A nested dict of raw values.

    Args:
        extract_fn: what to store for a leaf; by default a variable gives its value and other leaves pass.

    Example:
        >>> plait.to_pure_dict(plait.State({"a": {0: plait.Param(1.0)}}))
        {'a': {0: 1.0}}
    """
    extract = extract_fn or _raw
    return from_flat_state((path, extract(leaf)) for path, leaf in to_flat_state(state))._mapping


def _raw(leaf: Any) -> Any:
    """The raw value of a leaf; what a reference holds, and not the reference."""
    raw = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
    return raw[...] if is_mutable_array(raw) else raw


def replace_by_pure_dict(
    state: State, pure: Mapping[Any, Any], /, replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Write the values of a nested dict into a state, in place. Integer keys may come as strings.

    Args:
        replace_fn: ``(leaf, value) -> leaf``; by default a variable gets a copy with the new value.

    Raises:
        GraphError: the dict has a path that the state has not. Nothing is changed then.

    Example:
        >>> state = plait.State({"layers": {0: plait.Param(1.0)}})
        >>> plait.replace_by_pure_dict(state, {"layers": {"0": 2.0}})
        >>> state["layers"][0].value
        2.0
    """

    def replace(leaf: Any, value: Any) -> Any:
        return leaf.replace(value) if isinstance(leaf, Variable) else value

    replace_fn = replace_fn or replace
    known = dict(to_flat_state(state))
    by_text = {tuple(map(str, path)): path for path in known}
    new = {}
    for path, value in to_flat_state(pure):
        match = path if path in known else by_text.get(tuple(map(str, path)))
        if match is None:
            raise GraphError(
                "the dict has a path that the state does not have",
                at=describe_path(path),
                found=f"{value!r:.80}",
                expected=f"one of the {len(known)} paths of the state",
                do="compare with to_pure_dict(state)",
            )
        new[match] = replace_fn(known[match], value)
    for path, leaf in new.items():
        owner = state._mapping
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = leaf
    state._changed()


def restore_int_paths(pure: Mapping[Any, Any], /) -> dict[Any, Any]:
    """The same nested dict with string keys that are integers as integers, as they were before JSON or msgpack.

    Example:
        >>> plait.restore_int_paths({"layers": {"0": "a", "-1": "b"}})
        {'layers': {0: 'a', -1: 'b'}}
    """

    def key_of(key: Any) -> Any:
        return int(key) if isinstance(key, str) and key.removeprefix("-").isdecimal() else key

    return {
        key_of(key): restore_int_paths(value) if isinstance(value, Mapping) else value for key, value in pure.items()
    }


def as_pure(tree: Any, /) -> Any:
    """The tree with every variable replaced by its raw value, recursively.

    Example:
        >>> plait.as_pure({"w": plait.Param(2.0), "n": 3})
        {'n': 3, 'w': 2.0}
    """
    return jax.tree.map(
        lambda leaf: as_pure(_raw(leaf)) if isinstance(leaf, Variable) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Variable),
    )


def check_state(state: Any, operation: str) -> None:
    """Refuse something that is no state.

    Raises:
        ArgumentTypeError: names the operation and the type.
    """
    if not isinstance(state, (Mapping, FlatState)):
        raise ArgumentTypeError(
            f"{operation} takes states",
            found=describe_type(state),
            expected="a State, FlatState or nested dict",
            do="get one with plait.state(model) or plait.split(model)",
        )
