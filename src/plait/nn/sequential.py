"""Sequential: calls functions and modules one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..core.graph.locate import describe_place
from ..core.nodes.containers import List
from ..core.nodes.module import Module
from ..errors import ArgumentTypeError
from ..util.words import describe_type
from .checks import warn_unused


class Sequential(Module):
    """Call functions and modules in order, each with the output of the previous one.

    A tuple is passed on as positional arguments, a dict as keyword arguments, anything else as the only argument.
    Keywords of the call go to every one of them whose signature has a parameter of that name or ``**kwargs``.

    Variables:
        layers: a ``List`` of the functions and modules, so that a path reads ``layers[0].kernel``.

    Args:
        *fns: functions and modules, in order. The first gets the arguments of the call. If there are none, the call
          returns its only argument, otherwise the tuple or dict of its arguments, or ``None``.

    Raises:
        ArgumentTypeError: a keyword of the call is also a key of the dict that the layer before returned.

    Warns:
        UnusedArgumentWarning: no layer has a parameter for a keyword of the call.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> model = plait.Sequential(plait.Linear(2, 8, rngs=rngs), plait.relu, plait.Linear(8, 1, rngs=rngs))
        >>> model(jnp.ones((5, 2))).shape
        (5, 1)
    """

    def __init__(self, *fns: Callable[..., Any]) -> None:
        for position, each in enumerate(fns):
            if isinstance(each, (list, tuple)):
                raise ArgumentTypeError(
                    "a Sequential is made of functions and modules",
                    at=f"layers[{position}]",
                    found=describe_type(each),
                    expected="something that is called with the output of the one before",
                    do="give a list as arguments: plait.Sequential(*layers)",
                )
        self.layers = List(fns)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call them all.

        Args:
            *args: arguments of the first.
            **kwargs: keyword arguments of all that take them.
        """
        output: Any = _as_output(args, kwargs)
        unused = dict.fromkeys(kwargs) if len(self.layers) else {}
        for position, layer in enumerate(self.layers):
            args, named = _as_arguments(output) if position else (args, {})
            names = _taken(layer, kwargs, len(args)) if kwargs else []
            if twice := [name for name in names if name in named]:
                raise ArgumentTypeError(
                    "a layer of a Sequential is given the same argument twice",
                    at=f"layers[{position}] of {describe_place(self)}",
                    found=f"{', '.join(twice)} in the call and in the dict that layers[{position - 1}] returned",
                    expected="a keyword of the call that no layer returns",
                    do="rename one of the two",
                )
            output = layer(*args, **named, **{name: kwargs[name] for name in names})
            unused = {name: None for name in unused if name not in names}
        warn_unused(self, unused)
        return output

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)


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


def _taken(layer: Callable[..., Any], names: Iterable[str], count: int) -> list[str]:
    """The keywords that a layer takes beside ``count`` positional arguments.

    What is in a nested ``Sequential`` decides for it.
    """
    if isinstance(layer, Sequential) and type(layer).__call__ is Sequential.__call__:
        return [name for name in names if any(_taken(inner, [name], 0) for inner in layer.layers)]
    try:
        parameters = inspect.signature(layer).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        return []
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    others = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return [name for name in names if (name in named or others) and name not in positional[:count]]
