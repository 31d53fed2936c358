"""Nested mappings as (path, leaf) pairs, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...errors import GraphError
from ...util.paths import Path, describe_path, sorted_keys
from .variables import Variable


def iter_leaves(mapping: Mapping[Any, Any]) -> Iterator[tuple[Path, Any]]:
    """The leaves with their paths, in the order of paths. Variables are leaves."""
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


def nested(items: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """The nested dict of (path, leaf) pairs.

    Raises:
        GraphError: a path is empty, or a prefix of another path.
    """
    root: dict[Any, Any] = {}
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
