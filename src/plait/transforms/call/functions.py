"""The functions that transforms take: as decorators, and which ones they refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

from ...core.graph.locate import describe_place
from ...errors import ArgumentError, ArgumentTypeError
from ...words import describe_type
from .prefixes import is_graph_leaf

F = TypeVar("F", bound=Callable[..., Any])


def curried(transform: F) -> F:
    """A transform that is a decorator too: ``transform(f, **options)``, ``@transform``, ``@transform(**options)``."""

    @functools.wraps(transform)
    def wrapper(f: Any = None, /, *args: Any, **options: Any) -> Any:
        return functools.partial(wrapper, **options) if f is None else transform(f, *args, **options)

    return wrapper  # type: ignore[return-value]


def check_function(f: Any, name: str) -> None:
    """Refuse what a transform cannot lift.

    Raises:
        ArgumentTypeError: ``f`` is not callable.
        ArgumentError: ``f`` is a bound method of a module, whose module would be a hidden constant.
    """
    if not callable(f):
        raise ArgumentTypeError(
            f"{name} takes a function",
            found=describe_type(f),
            expected="a callable",
            do=f"call plait.{name}(f), or use @plait.{name} above the definition",
        )
    if isinstance(f, MethodType) and is_graph_leaf(f.__self__):
        cls, method = type(f.__self__).__name__, f.__name__
        name_of = cls.lower()
        if name == "lax_map":
            do = f"pass the module, too: plait.lax_map(lambda x, {name_of}: {name_of}.{method}(x), xs, {name_of})"
        elif name in ("cond", "switch", "while_loop", "fori_loop"):
            do = f"pass a function: lambda {name_of}, x: {name_of}.{method}(x)"
        else:
            do = f"decorate the method in the class (@plait.{name}), or call plait.{name}({cls}.{method})({name_of}, x)"
        raise ArgumentError(
            f"{name} was given a bound method of a module",
            at=describe_place(f.__self__),
            found=f"the method {method!r} bound to a {cls}",
            expected="a function that takes the module as an argument",
            do=do,
        )
