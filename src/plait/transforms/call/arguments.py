"""The arguments of a call: moving keywords to positions, wrapping static ones, and checking for arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from ...core.objects.nodes import Static
from ...core.objects.statics import static_key
from ...errors import ArgumentError, ArgumentTypeError
from ...words import describe_type
from .gather import Gathered
from .names import argument_name, parameter_names

_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def static_argument(transform: str, value: Any, argument: int | str) -> Static:
    """A static argument, wrapped so that it is part of the structure.

    Raises:
        ArgumentError: it cannot be hashed.
    """
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported",
            at=f"argument {argument!r}",
            found=describe_type(value),
            expected="a hashable value",
            do="pass a tuple instead of a list, or a dataclass with frozen=True; or do not mark the argument as static",
        ) from error
    return Static(value)


def with_statics(transform: str, args: tuple[Any, ...], argnums: int | Iterable[int]) -> tuple[Any, ...]:
    """Positional arguments, with static ones wrapped."""
    statics = {argnums} if isinstance(argnums, int) else set(argnums)
    statics = {number + len(args) if number < 0 else number for number in statics}
    return tuple(static_argument(transform, arg, i) if i in statics else arg for i, arg in enumerate(args))


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keyword arguments moved to positions, as far as the signature allows. (rule X1)"""
    if not kwargs:
        return args, kwargs
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs


def check_plain_arguments(function: Callable[..., Any], gathered: Gathered, error: Exception) -> None:
    """Raise an error that names the argument which JAX does not accept as an array.

    Raises:
        ArgumentTypeError: names the argument, its type, and what to do about it.
    """
    structure = gathered.structure
    plain = [path for path, graphdef in zip(structure.places(), structure.graphdefs, strict=True) if graphdef is None]
    names, name = parameter_names(function), getattr(function, "__name__", "f")
    for path, value in zip(plain, gathered.plain, strict=True):
        if isinstance(value, _NUMBERS) or hasattr(value, "__jax_array__"):
            continue
        at = argument_name(path, names)
        raise ArgumentTypeError(
            f"{name} was called with an argument that is not an array",
            at=f"argument {at}",
            found=f"{describe_type(value)}: {value!r:.60}",
            expected="arrays, numbers, modules, and containers of them",
            do=f"make it static: plait.jit({name}, static_argnames={at!r})"
            if len(path) == 2
            else "make the whole argument static, or remove such values from it",
        ) from error
