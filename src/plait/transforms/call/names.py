"""The user's names of arguments and their contents, for messages."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.objects.nodes import jax_key_to_key
from ...ground.paths import Path, format_path


class ParameterNames(NamedTuple):
    """What a function calls its positional arguments.

    Attributes:
        positional: the names of the parameters that take one argument each.
        rest: the name of the parameter that takes all others, such as ``models`` for ``*models``; ``None`` if the
            function has none, or no signature.
    """

    positional: tuple[str, ...] = ()
    rest: str | None = None

    def at(self, position: int) -> str:
        """The name of the argument at a position: ``x``, ``models[0]``; ``args[2]`` if the function has none for it."""
        if position < len(self.positional):
            return self.positional[position]
        return f"args[{position}]" if self.rest is None else f"{self.rest}[{position - len(self.positional)}]"


def parameter_names(function: Callable[..., Any]) -> ParameterNames:
    """What a function calls its positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ParameterNames()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return ParameterNames(names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None))


def argument_name(path: Any, names: ParameterNames) -> str:
    """The name of what is at a JAX path in ``(args, kwargs)``: ``batch["x"]``, ``models[1].kernel``.

    Args:
        names: the function's names; if it is not known, positional arguments are ``args[0]``, ``args[1]``, …
    """
    kind, first, *rest = map(jax_key_to_key, path)
    return joined(names.at(first) if kind == 0 else str(first), tuple(rest))


def name_in_code(function: Callable[..., Any]) -> str:
    """The name of a function in advice that is code; ``f`` for one without a name, such as a lambda."""
    name = getattr(function, "__name__", "f")
    return name if is_name(name) else "f"


def is_name(text: str) -> bool:
    """Whether a text is the name of a Python variable."""
    return text.isidentifier() and not keyword.iskeyword(text)


def joined(root: str, path: Path) -> str:
    """The path of an object in an argument: ``model.layers[0].kernel``."""
    text = format_path(tuple(path))
    return root + (text if not (root and text) or text.startswith("[") else f".{text}")
