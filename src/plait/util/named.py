"""Functions and types by name, to store a static value without its code.

A name is ``module:qualified.name``. Public modules of JAX are tried first, because the module where JAX defines a
function is private, and because the qualified names of some functions (``jax.nn.relu``) do not lead to them.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

_PUBLIC_MODULES = ("jax.nn", "jax.numpy", "jax.lax", "jax.nn.initializers", "jax.random")


def name_of(value: Any) -> str | None:
    """The name under which a value can be found again, or ``None``."""
    own = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    for module in (*_PUBLIC_MODULES, own):
        if isinstance(module, str) and isinstance(name, str) and _find(module, name) is value:
            return f"{module}:{name}"
    return None


def find_named(name: str) -> Any:
    """The value of a name in the modules that are already imported, or ``None``; nothing is imported."""
    module, _, qualified = name.partition(":")
    return _find(module, qualified) if qualified else None


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class NamedFunction:
    """Represents, in a pickle, a function that pickle itself cannot find."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def to_named(value: Any) -> Any:
    """A static value for pickling: functions of JAX that pickle cannot find are replaced by their names."""
    if type(value).__module__.startswith("jax") and callable(value):
        name = name_of(value)
        return value if name is None else NamedFunction(name)
    return _mapped(to_named, value)


def from_named(value: Any) -> Any:
    """The inverse of ``to_named``.

    Raises:
        AttributeError: this version of JAX has no function of that name.
    """
    if type(value) is NamedFunction:
        found = find_named(value.name)
        if found is None:
            raise AttributeError(f"a pickled module uses {value.name}, which this version of JAX does not have")
        return found
    return _mapped(from_named, value)


def _mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """``f`` on the elements of a plain container; the container itself if nothing changes."""
    if type(value) in (list, tuple):
        items = [f(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if type(value) is dict:
        items = [f(item) for item in value.values()]
        return value if all(map(operator.is_, items, value.values())) else dict(zip(value, items, strict=True))
    return value
