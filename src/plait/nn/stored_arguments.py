"""Layers store the arguments of their constructors under the names of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.objects.module import Module

_FOR_WEIGHTS = ("kernel_init", "bias_init", "_metadata")  # ends of the names of arguments that only make weights


def store_arguments(layer: Module, arguments: Mapping[str, Any]) -> None:
    """Store the arguments of a constructor, but for those that only make weights.

    Args:
        layer: which is constructed.
        arguments: the ``locals()`` of its constructor, before anything else is assigned.
    """
    for name, value in arguments.items():
        if name not in ("self", "rngs") and not name.endswith(_FOR_WEIGHTS):
            setattr(layer, name, value)
