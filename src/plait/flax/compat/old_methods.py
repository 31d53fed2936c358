"""Methods that programs for older versions of Flax call: of states, and ``iter_modules`` and ``iter_children``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...core.graph.traversal import iter_children, iter_modules
from ...core.nodes.module import Module
from ...core.states.pure_dicts import replace_by_pure_dict, to_pure_dict
from ...core.states.state import State
from ...util.notices import deprecated


def _to_pure_dict(self: State, extract_fn: Any = None) -> Any:
    deprecated("State.to_pure_dict", since="0.1", instead="plait.to_pure_dict(state)", removed_in="2.0")
    return to_pure_dict(self, extract_fn)


def _replace_by_pure_dict(self: State, pure_dict: Any, replace_fn: Any = None) -> None:
    deprecated(
        "State.replace_by_pure_dict", since="0.1", instead="plait.replace_by_pure_dict(state, pure)", removed_in="2.0"
    )
    replace_by_pure_dict(self, pure_dict, replace_fn)


setattr(State, "to_pure_dict", _to_pure_dict)  # noqa: B010  # type checkers see an unchanged class
setattr(State, "replace_by_pure_dict", _replace_by_pure_dict)  # noqa: B010


def _method(function: Callable[[Any], Iterator[tuple[Any, Any]]]) -> Callable[[Any], Iterator[tuple[Any, Any]]]:
    """The older method form of a function, which warns."""
    name = function.__name__

    def method(self: Any) -> Iterator[tuple[Any, Any]]:
        deprecated(f"module.{name}()", since="0.1", instead=f"plait.{name}(module)", removed_in="2.0")
        return function(self)

    method.__name__, method.__doc__ = name, f"The older form of ``plait.{name}(module)``; warns."
    return method


for _function in (iter_modules, iter_children):
    setattr(Module, _function.__name__, _method(_function))
