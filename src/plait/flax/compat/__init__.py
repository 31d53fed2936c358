"""Compatibility with Flax: modes, and names that programs written for Flax use.

As a public module, ``plait.compat`` has the functions that take modes, with graph mode and graph updates fixed.
``plait.compat.jit(f)`` is ``plait.jit(f, graph=True, graph_updates=True)``, whatever ``plait.set_graph_mode`` and
``plait.set_graph_updates`` have set. Example:

    >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    >>> with plait.set_graph_updates(False):
    ...     plait.compat.jit(lambda model: setattr(model, "extra", 1))(model)
    >>> model.extra
    1

``plait.compat.live_states`` makes states hold the model's own variables, as Flax's do.
"""

# Rule X29.

from __future__ import annotations

from typing import Any

from ...core.states.live import live_states as live_states
from .fixed import NAMES as NAMES, fixed

__all__ = ["live_states"]  # with the functions of NAMES, each with its modes fixed


def __getattr__(name: str) -> Any:
    """The function of that name, with its modes fixed."""
    if name not in NAMES:
        raise AttributeError(f"module 'plait.compat' has no attribute {name!r}")
    return globals().setdefault(name, fixed(name))


def __dir__() -> list[str]:
    return sorted((*NAMES, *__all__))
