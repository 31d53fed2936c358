"""Flattening and unflattening of nested mappings: ``nnx.traversals``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import ArgumentTypeError
from ...typing import Value
from ...util.paths import Path

IsLeaf = Callable[[Path, Mapping[Any, Value]], bool]


class _EmptyNode:
    """Represents an empty mapping among flat entries; it has no leaves."""

    def __repr__(self) -> str:
        return "empty_node"


empty_node = _EmptyNode()


def flatten_mapping(
    xs: Mapping[Any, Value], /, *, keep_empty_nodes: bool = False, is_leaf: IsLeaf | None = None, sep: str | None = None
) -> dict[Any, Value]:
    """The leaves of a nested mapping by path.

    Args:
        xs: the nested mapping.
        keep_empty_nodes: whether to keep empty mappings, as ``empty_node``, or omit them.
        is_leaf: called with each path and mapping; whether the mapping counts as a leaf.
        sep: the text between the keys of a path; ``None`` means that paths are tuples.

    Raises:
        ArgumentTypeError: ``xs`` is not a mapping.

    Example:
        >>> from plait.core.states.mappings import flatten_mapping
        >>> flatten_mapping({"a": {"b": 1}, "c": {}}, sep="/")
        {'a/b': 1}
    """
    if not isinstance(xs, Mapping):
        raise ArgumentTypeError(
            "only a nested mapping can be flattened",
            found=f"a {type(xs).__name__}",
            expected="a dict, a State or another mapping",
            do='pass for example {"layer": {"kernel": 1.0}}',
        )
    leaves = _leaves(xs, (), is_leaf) if xs else ()
    flat = {path: leaf for path, leaf in leaves if keep_empty_nodes or leaf is not empty_node}
    return {path if sep is None else sep.join(path): leaf for path, leaf in flat.items()}


def flatten_to_sequence(xs: Mapping[Any, Value], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Path, Value]]:
    """Like ``flatten_mapping``, but returns a list of pairs.

    Example:
        >>> from plait.core.states.mappings import flatten_to_sequence
        >>> flatten_to_sequence({"b": {2: 1}, "a": 0})
        [(('b', 2), 1), (('a',), 0)]
    """
    return list(flatten_mapping(xs, is_leaf=is_leaf).items())


def unflatten_mapping(xs: Any, /, *, sep: str | None = None) -> dict[Any, Value]:
    """The nested mapping of a flat mapping, or of pairs.

    Args:
        xs: leaves by path.
        sep: the text between the keys, if paths are text.

    Example:
        >>> from plait.core.states.mappings import empty_node, unflatten_mapping
        >>> unflatten_mapping({("a", "b"): 1, ("a", "c"): empty_node})
        {'a': {'b': 1, 'c': {}}}
    """
    nested: dict[Any, Value] = {}
    for path, leaf in xs.items() if isinstance(xs, Mapping) else xs:
        *outer, last = path if sep is None else path.split(sep)
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = {} if leaf is empty_node else leaf
    return nested


def _leaves(xs: Value, path: Path, is_leaf: IsLeaf | None) -> Iterator[tuple[Path, Value]]:
    if not isinstance(xs, Mapping) or (is_leaf is not None and is_leaf(path, xs)):
        yield path, xs
    elif not xs:
        yield path, empty_node
    else:
        for key, value in xs.items():
            yield from _leaves(value, (*path, key), is_leaf)
