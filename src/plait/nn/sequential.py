"""Sequential: calls functions and modules one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..core.objects.containers import List
from ..core.objects.module import Module
from ..core.objects.rngs import Rngs


class Sequential(Module):
    """Call functions and modules in order, each with the output of the previous one.

    A tuple is passed on as positional arguments, a dict as keyword arguments, anything else as the only argument.

    Variables:
        layers: a ``List`` of the functions and modules, so that a path reads ``layers[0].kernel``.

    Args:
        *fns: functions and modules, in order. The first gets the arguments of the call. If there are none, the call
          returns its only argument, otherwise the tuple or dict of its arguments, or ``None``.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> model = plait.Sequential(plait.Linear(2, 8, rngs=rngs), plait.relu, plait.Linear(8, 1, rngs=rngs))
        >>> model(jnp.ones((5, 2))).shape
        (5, 1)
    """

    def __init__(self, *fns: Callable[..., Any]) -> None:
        self.layers = List(fns)

    def __call__(self, *args: Any, rngs: Rngs | None = None, **kwargs: Any) -> Any:
        """Call them all.

        Args:
            *args: arguments of the first.
            rngs: passed to each member that has a parameter of that name.
            **kwargs: keyword arguments of the first.
        """
        output: Any = _as_output(args, kwargs)
        for position, layer in enumerate(self.layers):
            if position:
                args, kwargs = _as_arguments(output)
            if rngs is not None and _takes_rngs(layer):
                kwargs = {**kwargs, "rngs": rngs}
            output = layer(*args, **kwargs)
        return output


def _as_output(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an empty sequence: its positional arguments, or else its keyword arguments."""
    if args:
        return args[0] if len(args) == 1 else args
    return kwargs or None


def _as_arguments(output: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(output, tuple):
        return output, {}
    if isinstance(output, Mapping):
        return (), dict(output)
    return (output,), {}


def _takes_rngs(layer: Callable[..., Any]) -> bool:
    try:
        return "rngs" in inspect.signature(layer).parameters
    except (TypeError, ValueError):  # builtins may have no signature
        return False
