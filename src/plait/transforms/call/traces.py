"""The outcomes of a function that JAX traces once for each combination of types of its inputs.

``jax.lax.while_loop`` and ``cond`` return no static values, so the kept function remembers what each of its traces did.
A later call with inputs of known types is not traced; its outcome is found by the types. (rule U27)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")

Types = tuple[tuple[tuple[Any, Any], ...], ...]


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
