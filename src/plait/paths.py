"""Paths: how a place in a graph is named, ordered and printed.

A path is a tuple of keys (attribute names and indices) from a root. Keys sort by kind first, integers before strings,
then by value; errors print a path the way a user would write the access: ``encoder.layers[3].kernel``.
"""

from __future__ import annotations

from typing import Any

from .errors import GraphError
from .words import with_article

Key = int | str
Path = tuple[Any, ...]


def sort_key(key: Any) -> tuple[int, str, Any]:
    """Order of the keys of one node: integers, then strings, then other kinds by the name of their type."""
    kind = type(key)
    if kind is str:
        return (1, "", key)
    if kind is int:
        return (0, "", key)
    if isinstance(key, int) and not isinstance(key, bool):
        return (0, "", int(key))
    if isinstance(key, str):
        return (1, "", str(key))
    if kind is tuple:  # a path as a key, whose entries may be numbers beside names
        return (2, "tuple", [sort_key(entry) for entry in key])
    return (2, kind.__name__, key)


def sorted_keys(keys: Any, owner: str = "mapping") -> list[Any]:
    """The keys of one node in their order.

    Raises:
        GraphError: a key cannot be hashed or compared with its neighbours.
    """
    keys = list(keys)
    try:
        return sorted(keys, key=sort_key)
    except TypeError as error:
        odd = next((key for key in keys if not isinstance(key, (int, str))), keys[0])
        raise GraphError(
            f"{with_article(owner)} has a key that cannot be ordered",
            found=f"key {odd!r} of type {type(odd).__name__}",
            expected="keys that are integers or strings, or all of one type that sorts",
            do="use str or int keys",
        ) from error


def format_path(path: Path) -> str:
    """Print a path as an access: ``('layers', 3, 'kernel')`` gives ``layers[3].kernel``."""
    text = ""
    for key in path:
        if isinstance(key, str) and key.isidentifier():
            text += f".{key}" if text else key
        else:
            text += f"[{key!r}]"
    return text


def describe_path(path: Path) -> str:
    """The same for error messages, where the root needs a name too."""
    return format_path(path) or "the root"
