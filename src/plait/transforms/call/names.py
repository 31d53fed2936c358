"""The user's names of arguments and their contents, for messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.objects.nodes import jax_key_to_key
from ...paths import Path, format_path


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, in order; empty if it has no signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """A function's names of its positional arguments."""
    names = parameter_names(function)
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(count)]


def argument_name(path: Any, names: list[str]) -> str:
    """The name of a JAX path in ``(args, kwargs)``, with the name of the parameter: ``batch["x"]``."""
    kind, first, *rest = map(jax_key_to_key, path)
    name = names[first] if kind == 0 and first < len(names) else str(first)
    return format_path((name, *rest))


def joined(root: str, path: Path) -> str:
    """The path of an object in an argument: ``model.layers[0].kernel``."""
    text = format_path(tuple(path))
    return root + (text if not (root and text) or text.startswith("[") else f".{text}")
