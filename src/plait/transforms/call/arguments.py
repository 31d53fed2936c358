"""The names of a function's arguments, for messages about one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax

from ...core.objects.nodes import Static, jax_key_to_key
from ...core.objects.statics import static_key
from ...errors import ArgumentError
from ...paths import Path, format_path
from ...words import describe_type
from .prefixes import is_graph_leaf


def static_argument(transform: str, value: Any, argument: int | str) -> Static:
    """A static argument, wrapped for the crossing.

    Raises:
        ArgumentError: it cannot be hashed.
    """
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            f"{transform}: a static argument cannot be hashed",
            at=f"argument {argument!r}",
            found=describe_type(value),
            expected="a hashable value",
            do="pass a tuple instead of a list, or a dataclass with frozen=True; or do not mark the argument static",
        ) from error
    return Static(value)


def with_statics(transform: str, args: tuple[Any, ...], argnums: int | Iterable[int]) -> tuple[Any, ...]:
    """Positional arguments, the static ones wrapped."""
    statics = {argnums} if isinstance(argnums, int) else set(argnums)
    statics = {number + len(args) if number < 0 else number for number in statics}
    return tuple(static_argument(transform, arg, i) if i in statics else arg for i, arg in enumerate(args))


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, in order; none where it has no signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """What a function calls its positional arguments."""
    names = parameter_names(function)
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(count)]


def argument_name(path: Any, names: list[str]) -> str:
    """A place in ``(args, kwargs)``, a JAX path, by the name of the parameter: ``batch["x"]``."""
    return format_path(argument_path(path, names))


def argument_path(path: Any, names: list[str]) -> Path:
    """The same as a path: ``("batch", "x")``."""
    kind, first, *rest = map(jax_key_to_key, path)
    return (names[first] if kind == 0 and first < len(names) else str(first), *rest)


def objects_by_name(function: Callable[..., Any], tree: Any) -> dict[Any, Any]:
    """The objects in ``(args, kwargs)``, in dicts whose paths are those that a user writes: ``models[0].kernel``."""
    names = parameter_names(function)
    found: dict[Any, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_graph_leaf)[0]:
        if is_graph_leaf(leaf):
            *above, last = argument_path(path, names)
            owner = found
            for key in above:
                owner = owner.setdefault(key, {})
            owner[last] = leaf
    return found
