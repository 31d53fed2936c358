"""Plait modules and Linen modules inside a ``bridge.Module``."""

# Rule B36.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.nodes.module import Module
from ...core.rngs import Rngs
from ...errors import ArgumentError
from .module.children import attach
from .module.running import ModuleStackEntry, current_context
from .wrappers.linen import outside_linen
from .wrappers.stored_modules import abstract_in_streams
from .wrappers.to_nnx import ToNNX

_READS_VALUES = "compute it with NumPy, or pass it to the constructor"


def nnx_in_bridge_mdl(factory: Callable[[Rngs], Module], name: str | None = None) -> Any:
    """Make a plait module a submodule of the running ``bridge.Module``.

    Args:
        factory: creates the module; ``apply`` runs it only on shapes, and fills the module with the stored variables.
            Its random streams are those of the call, in ``init`` and in ``apply``.
        name: in a compact method, the name of the submodule; in ``setup`` the attribute names it.

    Raises:
        ArgumentError: no ``setup`` or compact method of a ``bridge.Module`` is running.

    Example:
        >>> class Net(plait.bridge.Module):
        ...     @plait.bridge.compact
        ...     def __call__(self, x):
        ...         return plait.bridge.nnx_in_bridge_mdl(lambda rngs: plait.Linear(2, 3, rngs=rngs), name="head")(x)
        >>> Net().init(0, jnp.ones((1, 2)))["params"]["head"]["kernel"].shape
        (2, 3)
    """
    entry = _running("nnx_in_bridge_mdl")
    scope = entry.module.scope

    def construct(rngs: Rngs) -> Module:
        with outside_linen():
            return factory(rngs)

    if scope.initializing:
        module = construct(scope.rngs)
    else:
        # Linen's streams are optional in apply; without them, a module draws the same keys in each call.
        others = {} if "default" in scope.rngs else {"default": 0}
        keys = {**others, **{name: stream.key.get_value() for name, stream in scope.rngs.items()}}
        module, construct_there = abstract_in_streams(construct, scope.rngs, others, _READS_VALUES)
        entry.unfilled[id(module)] = (module, construct_there, keys)
    return attach(entry, module, name) if entry.in_compact else module


def linen_in_bridge_mdl(linen_module: Any, name: str | None = None) -> ToNNX:
    """Make a Linen module a submodule of the running ``bridge.Module``, wrapped in a ``ToNNX``.

    Args:
        linen_module: a Linen module.
        name: in a compact method, the name of the submodule; in ``setup`` the attribute names it.

    Raises:
        ArgumentError: no ``setup`` or compact method of a ``bridge.Module`` is running.

    Example:
        >>> import flax.linen as nn
        >>> class Net(plait.bridge.Module):
        ...     @plait.bridge.compact
        ...     def __call__(self, x):
        ...         return plait.bridge.linen_in_bridge_mdl(nn.Dense(3))(x)
        >>> Net().init(0, jnp.ones((1, 2)))["params"]["Dense_0"]["kernel"].shape
        (2, 3)
    """
    entry = _running("linen_in_bridge_mdl")
    module = ToNNX(linen_module, entry.module.scope.rngs)
    return attach(entry, module, name, type(linen_module).__name__) if entry.in_compact else module


def _running(function: str) -> ModuleStackEntry:
    entry = current_context()
    if entry is None or entry.module.scope is None:
        raise ArgumentError(
            f"{function} makes a submodule of a running bridge.Module",
            found="no running setup() or compact method",
            expected="a call in `setup()`, or in a method wrapped in `@compact`, during init or apply",
            do="call it there, and run the module with init(...) or apply(...)",
        )
    return entry


__dir__ = "linen_in_bridge_mdl nnx_in_bridge_mdl".split
