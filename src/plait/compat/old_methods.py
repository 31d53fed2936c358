"""Methods that programs for older versions of Flax call: the functions that take the object first, as methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.objects.module import Module
from ..core.objects.pure_dicts import replace_by_pure_dict, to_pure_dict
from ..core.objects.state import State
from ..deprecations import deprecated
from .functions import iter_children, iter_modules


def _add(cls: type, function: Callable[..., Any], old: str, instead: str) -> None:
    """Give a class the older method form of a function, which warns."""
    name = function.__name__

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        deprecated(old, since="0.1", instead=instead, removed_in="2.0")
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, f"The older form of ``{instead}``; warns."
    setattr(cls, name, method)


_add(Module, iter_modules, "module.iter_modules()", "plait.iter_modules(module)")
_add(Module, iter_children, "module.iter_children()", "plait.iter_children(module)")
_add(State, to_pure_dict, "State.to_pure_dict", "plait.to_pure_dict(state)")
_add(State, replace_by_pure_dict, "State.replace_by_pure_dict", "plait.replace_by_pure_dict(state, pure)")
