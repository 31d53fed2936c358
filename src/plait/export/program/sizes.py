"""Parses dynamic sizes, for all kinds of inputs.

A dynamic size is a symbolic dimension of ``jax.export``. JAX itself parses a symbolic shape, such as ``"batch, 2*n"``,
to dimensions of one scope, in which equal names are equal sizes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from jax import export

from ...errors import ArgumentError

Size = Any  # a number, or a symbolic dimension
FUNCTIONS = frozenset({"max", "min", "mod", "floordiv"})


def read_sizes(shape: str | None, known: Sequence[int | None], scope: export.SymbolicScope) -> tuple[Size | None, ...]:
    """The sizes of an array from a symbolic shape; ``None`` for sizes that are not given.

    Args:
        shape: names, numbers and expressions; ``_`` and ``...`` mean the known sizes; so does ``None`` as a shape.
        known: the sizes of the array, ``None`` if unknown.
        scope: the scope in which equal names are equal sizes.

    Raises:
        ArgumentError: it is not a shape, has a different number of axes, or a number that differs from a known size.
    """
    # No user-defined name can be equal to this size, since it is in a separate scope.
    (unknown,) = export.symbolic_shape("unknown")
    like: Any = tuple(unknown if size is None else size for size in known)
    try:
        sizes = tuple(export.symbolic_shape("..." if shape is None else shape, scope=scope, like=like))
        problem = "" if len(sizes) == len(like) else f"{len(sizes)} sizes for {len(like)} axes"
        if any(type(new) is int and old not in (None, new) for new, old in zip(sizes, known, strict=False)):
            problem = "a fixed size differs"
    except (ValueError, TypeError) as error:
        raise _not_fitting(shape, known, error) from error
    if problem:
        raise _not_fitting(shape, known, problem)
    return tuple(None if size is unknown else size for size in sizes)


def names_in(shape: str) -> set[str]:
    """The names in a symbolic shape, including those of functions.

    Raises:
        ArgumentError: it is not a shape.
    """
    try:
        found = {node.id for node in ast.walk(ast.parse(f"({shape})")) if isinstance(node, ast.Name)}
    except SyntaxError as error:
        raise _not_fitting(shape, (), error) from error
    return found - {"_"}


def size_for(size: Size, numbers: Mapping[str, int]) -> int:
    """The value of a size for given values of all names."""
    scope = export.SymbolicScope([f"{name} == {number}" for name, number in numbers.items()])
    return int(export.symbolic_shape(str(size), scope=scope)[0])


def _not_fitting(shape: str | None, known: Sequence[int | None], problem: Any) -> ArgumentError:
    return ArgumentError(
        "input_polymorphic_shape does not fit the input",
        found=f"{shape!r} for a tensor of shape {tuple(known)}: {problem}",
        expected="a size, a name or _ for each axis, or ... for the rest",
        do='JaxModule(..., input_polymorphic_shape="b, ...")',
    )
