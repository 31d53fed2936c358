"""Conversion between states and nested dicts of raw values, for code that does not use variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from ...errors import ArgumentTypeError, GraphError
from ...typing import Tree, Value
from ...util.paths import describe_path
from ...util.words import describe_type
from ..variables.cells import read
from ..variables.variables import Variable
from .state import State, from_flat_state, to_flat_state


def to_pure_dict(state: Mapping[Any, Value], extract_fn: Callable[[Value], Value] | None = None) -> dict[Any, Value]:
    """A nested dict of raw values.

    Args:
        extract_fn: the value to store for a leaf; by default the value of a variable, and other leaves unchanged.

    Raises:
        ArgumentTypeError: ``state`` is not a mapping, such as the tuple of states that ``pop`` returns.

    Example:
        >>> plait.to_pure_dict(plait.State({"a": {0: plait.Param(1.0)}}))
        {'a': {0: 1.0}}
    """
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(
            "to_pure_dict takes one state",
            found=describe_type(state),
            expected="a State or a nested dict",
            do="to_pure_dict(state); for several, to_pure_dict(plait.merge_state(*states))",
        )
    extract = extract_fn or plain_value
    return from_flat_state((path, extract(leaf)) for path, leaf in to_flat_state(state))._mapping


def with_value(leaf: Value, value: Value) -> Value:
    """A copy of a variable with a new value; for any other leaf, the value."""
    return leaf.replace(value) if isinstance(leaf, Variable) else value


def plain_value(leaf: Value) -> Value:
    """The raw value of a leaf; for a reference, its content."""
    return read(leaf.get_raw_value() if isinstance(leaf, Variable) else leaf)


def replace_by_pure_dict(
    state: State, pure_dict: Mapping[Any, Value], replace_fn: Callable[[Value, Value], Value] | None = None
) -> None:
    """Write the values of a nested dict into a state, in place. Integer keys may come as strings.

    Args:
        replace_fn: ``(leaf, value) -> leaf``; by default a variable is copied with the new value.

    Raises:
        GraphError: the dict has a path that the state does not have; nothing is changed.

    Example:
        >>> state = plait.State({"layers": {0: plait.Param(1.0)}})
        >>> plait.replace_by_pure_dict(state, {"layers": {"0": 2.0}})
        >>> state["layers"][0].value
        2.0
    """

    replace_fn = replace_fn or with_value
    known = dict(to_flat_state(state))
    by_text = {tuple(map(str, path)): path for path in known}
    new = {}
    for path, value in to_flat_state(pure_dict):
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


def restore_int_paths(pure_dict: Mapping[Any, Value]) -> dict[Any, Value]:
    """Convert string keys of a nested dict that are integers back to integers, as they were before JSON or msgpack.

    Example:
        >>> plait.restore_int_paths({"layers": {"0": "a", "-1": "b"}})
        {'layers': {0: 'a', -1: 'b'}}
    """

    def key_of(key: Hashable) -> Any:
        return int(key) if isinstance(key, str) and key.removeprefix("-").isdecimal() else key

    return {
        key_of(key): restore_int_paths(value) if isinstance(value, Mapping) else value
        for key, value in pure_dict.items()
    }


def as_pure(tree: Tree) -> Tree:
    """The tree with every variable replaced by its raw value, recursively.

    Example:
        >>> plait.as_pure({"w": plait.Param(2.0), "n": 3})
        {'n': 3, 'w': 2.0}
    """
    return jax.tree.map(
        lambda leaf: as_pure(plain_value(leaf)) if isinstance(leaf, Variable) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Variable),
    )
