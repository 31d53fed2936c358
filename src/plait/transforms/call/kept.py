"""Kept functions: what a transform made for a body, so that JAX traces and compiles an equal call once.

JAX keeps the trace of a function by its identity, and bodies have no other equality. So an eager loop, a branch or
``remat`` gets the same function for the same user's function, structure, options and settings. As in JAX, a plain value
that it reads from outside is that of the first trace. Objects are better off: a function whose trace read a variable
from outside is forgotten at once, and traced again by the next call. (rule U27)

Entries are kept until the user's function dies; of each function the latest ``MOST``. They keep alive only structures,
which reference no object, and functions of arrays that reference the user's function weakly.

``jax.lax.while_loop`` and ``cond`` return no static values, so a kept function remembers what each of its traces did,
by the types of its inputs: a later call with inputs of known types is not traced. (``Traces``)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

import jax

from ..._compat import trace_settings
from ...errors import StaticValueError

T = TypeVar("T")
Types = tuple[tuple[tuple[Any, Any], ...], ...]

MOST = 64

# User's function → key → (body, what was made for it), the latest used last.
_kept: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, Any]]] = weakref.WeakKeyDictionary()


def keep(f: Any, body: Any, key: Hashable, make: Callable[[Any], T]) -> T:
    """What was made for an equal body of the same function, or what ``make`` makes now.

    Args:
        key: what it depends on, beside the function.
    """
    try:
        entries, key = _kept.setdefault(f, {}), (key, trace_settings())
        entry = entries.pop(key, None) or (body, make(body))
        entries[key] = entry
    except (StaticValueError, TypeError):  # a part of the key cannot be hashed
        return make(body)
    while len(entries) > MOST:
        entries.pop(next(iter(entries)), None)
    return entry[1]


def forget(f: Any, body: Any) -> None:
    """Drop what was made for a body."""
    entries = _kept.get(f, {})
    for key in [key for key, (known, _) in [*entries.items()] if known is body]:
        entries.pop(key, None)


class Traces(Generic[T]):
    """What the traces of a function did, by the types of its inputs."""

    def __init__(self) -> None:
        self._by_types: dict[Types, T] = {}

    def add(self, values: Iterable[Any], outcome: T) -> None:
        """Record a trace with these input values."""
        self._by_types[types_of(values)] = outcome

    def of(self, values: Iterable[Any]) -> T | None:
        """The outcome of the trace for values of these types."""
        return self._by_types.get(types_of(values))


def types_of(values: Iterable[Any]) -> Types:
    """Shape and dtype of each leaf of each value."""
    return tuple(
        tuple((jax.typeof(leaf).shape, jax.typeof(leaf).dtype) for leaf in jax.tree_util.tree_leaves(value))
        for value in values
    )
