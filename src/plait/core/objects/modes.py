"""Modes: settings that switch how a layer computes, such as training and evaluation. (rules D4, D5, L6)

The protocol is one method. A layer that has modes defines ``set_view`` with a keyword for each, where ``None`` leaves
the mode as it is; ``view``, ``train``, ``eval`` and ``set_attributes`` call it with those that it takes. What a mode
means for the layer is the layer's own business: it need not be an attribute of that name.
"""

from __future__ import annotations

import inspect
from typing import Any


def mode_names(node: Any) -> set[str] | None:
    """The modes of a node; ``None`` where its ``set_view`` takes any name."""
    if not hasattr(node, "set_view"):
        return set()
    parameters = inspect.signature(node.set_view).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}
