"""The functions that transforms accept, and transforms as decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

from ...core.graph.locate import describe_place
from ...errors import ArgumentError, ArgumentTypeError
from ...util.words import describe_type
from .arguments import is_graph_leaf

F = TypeVar("F", bound=Callable[..., Any])


def curried(transform: F) -> F:
    """A transform that is also a decorator: ``transform(f, **options)``, ``@transform``, ``@transform(**options)``."""

    name = next(iter(inspect.signature(transform).parameters))

    @functools.wraps(transform)
    def wrapper(*args: Any, **options: Any) -> Any:
        f, *rest = args or (options.pop(name, None),)
        return functools.partial(wrapper, **options) if f is None else transform(f, *rest, **options)

    return wrapper  # type: ignore[return-value]


class RuledFunction:
    """A function that comes with others, such as the rule for its derivative.

    Attributes:
        functions: the others.
        rule_number: how often they were set.
    """

    functions: tuple[Callable[..., Any], ...] = ()
    rule_number = 0
    __call__: Callable[..., Any]


# Functions that can be looked into, and that live as long as the user's program refers to them.
CACHEABLE_FUNCTIONS = FunctionType, functools.partial, RuledFunction


def check_function(f: Any, name: str) -> None:
    """Raise if a transform cannot lift this function.

    Raises:
        ArgumentTypeError: ``f`` is not callable.
        ArgumentError: ``f`` is a bound method of a module, whose module would be a hidden constant.
    """
    if not callable(f):
        raise ArgumentTypeError(
            f"{name} takes a function",
            found=describe_type(f),
            expected="a callable",
            do=f"pass the function itself, without calling it: {_call(name, 'f', 'x')}",
        )
    if isinstance(f, MethodType) and is_graph_leaf(f.__self__):
        cls, method = type(f.__self__).__name__, f.__name__
        module = cls.lower()
        if name == "lax_map":
            do = f"also pass the module: plait.lax_map(lambda x, {module}: {module}.{method}(x), xs, {module})"
        elif name in _FUNCTION_AMONG_OTHERS:
            do = f"pass a function that takes the module: lambda {module}, x: {module}.{method}(x)"
        elif name in _FUNCTION_FIRST:
            do = f"pass the module as an argument: {_call(name, f'{cls}.{method}', f'{module}, x')}"
        else:
            call = _call(name, f"{cls}.{method}", f"{module}, x")
            do = f"decorate the method in the class (@plait.{name}), or call {call}"
        raise ArgumentError(
            f"{name} does not support bound methods, but got a bound method of a module",
            at=describe_place(f.__self__),
            found=f"the method {method!r} bound to a {cls}",
            expected="a function that takes the module as an argument",
            do=do,
        )


# Transforms that take the function with its arguments, and those that take it among other arguments.
_FUNCTION_FIRST = ("eval_shape", "vjp", "linearize", "jvp", "hvp", "jit_partial")
_FUNCTION_AMONG_OTHERS = (
    *("cond", "switch", "while_loop", "fori_loop", "lax_map", "shard_map"),
    *("custom_vjp.defvjp", "custom_jvp.defjvp", "Stack.scan"),
)


def _call(name: str, f: str, arguments: str) -> str:
    """The code that calls a transform with a function, and the result with arguments."""
    if name == "jvp":
        tangents = ", ".join(f"{each}_tangent" for each in arguments.split(", "))
        return f"plait.jvp({f}, primals=({arguments},), tangents=({tangents},))"
    if name == "hvp":
        return f"plait.hvp({f}, primals=({arguments},), tangents=grads)"
    if name == "transform_metadata":
        return f"plait.transform_metadata({f}, partition='layers')"
    if name == "jit_partial":
        return f"plait.jit_partial({f}, {arguments.replace(', ', ')(', 1)})"
    if name in _FUNCTION_FIRST:
        return f"plait.{name}({f}, {arguments})"
    return f if name in _FUNCTION_AMONG_OTHERS else f"plait.{name}({f})({arguments})"
