"""Modes: settings that change how a layer computes, such as training and evaluation. (rules D4, D5, L6)

The protocol is a single method. A layer with modes defines ``set_view`` with a keyword for each mode, where ``None``
leaves the mode unchanged; ``view``, ``train``, ``eval`` and ``set_attributes`` call it with the keywords that it
accepts. The layer itself defines what a mode does; it need not be an attribute of that name.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

# ``stacks/every_layer.py`` registers what surrounds a change of modes: node → context.
around_changes: list[Callable[[Any], contextlib.AbstractContextManager[None]]] = []


def mode_names(node: Any) -> set[str] | None:
    """The modes of a node; ``None`` if its ``set_view`` accepts any name."""
    if not hasattr(node, "set_view"):
        return set()
    parameters = inspect.signature(node.set_view).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def change_modes(node: Any, settings: dict[str, Any]) -> None:
    """Call the ``set_view`` of a node, which may be a block of many layers."""
    with contextlib.ExitStack() as around:
        for enter in around_changes:
            around.enter_context(enter(node))
        node.set_view(**settings)
