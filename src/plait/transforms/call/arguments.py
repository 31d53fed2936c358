"""The arguments of a call: moving keywords to positions, and wrapping static ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ...core.objects.attributes import has_data
from ...core.objects.nodes import Static
from ...core.objects.statics import static_key
from ...errors import ArgumentError
from ...ground.words import describe_type
from .names import parameter_names
from .prefixes import is_graph_leaf


def static_argument(transform: str, value: Any, name: str) -> Static:
    """A static argument of this name, wrapped so that it is part of the structure.

    Raises:
        ArgumentError: it cannot be hashed, or it is a module or variable, whose values would be constants.
    """
    if any(map(is_graph_leaf, has_data(value))):
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported, nor are modules and variables",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value without arrays, which the compiled program would keep as they are now",
            do="do not mark the argument as static: modules are ordinary arguments",
        )
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value",
            do="pass a tuple instead of a list, or a dataclass with frozen=True; or do not mark the argument as static",
        ) from error
    return Static(value)


def with_statics(
    transform: str, f: Callable[..., Any], args: tuple[Any, ...], argnums: int | Iterable[int]
) -> tuple[Any, ...]:
    """Positional arguments, with static ones wrapped."""
    statics = {argnums} if isinstance(argnums, int) else set(argnums)
    statics = {number + len(args) if number < 0 else number for number in statics}
    if not statics:
        return args
    names = parameter_names(f)
    return tuple(static_argument(transform, arg, names.at(i)) if i in statics else arg for i, arg in enumerate(args))


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keyword arguments moved to positions, as far as the signature allows. (rule X1)"""
    if not kwargs:
        return args, kwargs
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs
