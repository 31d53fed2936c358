"""Layers store the arguments of their constructors under the names of the parameters, and make weights from the rest.

``arguments`` are the ``locals()`` of a constructor, before anything else is assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.nodes.module import Module
from ..core.variables.variable_kinds import Param
from ..typing import Array
from .initializers import initial

_FOR_WEIGHTS = ("kernel_init", "bias_init", "_metadata")  # ends of the names of arguments that only make weights


def store_arguments(layer: Module, arguments: Mapping[str, Any]) -> None:
    """Store the arguments of a constructor, but for those that only make weights."""
    for name, value in arguments.items():
        if name not in ("self", "rngs") and not name.endswith(_FOR_WEIGHTS):
            setattr(layer, name, value)


def new_weight(name: str, shape: Sequence[int], arguments: Mapping[str, Any]) -> Param[Array]:
    """A weight from the arguments ``NAME_init``, ``NAME_metadata``, ``param_dtype`` and ``rngs``."""
    value = initial(arguments[f"{name}_init"], arguments["rngs"].params, shape, arguments["param_dtype"])
    return Param(value, **arguments[f"{name}_metadata"])
