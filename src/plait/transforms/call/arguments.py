"""The arguments of a call: what they are called in messages, those of JAX too, moving keywords to positions, wrapping
static ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import jax

from ...core.objects.attributes import has_data
from ...core.objects.nodes import GRAPH_REGISTRY, Static, jax_key_to_key
from ...core.objects.pytree import Pytree
from ...core.objects.statics import static_key
from ...core.objects.variables import Variable
from ...errors import ArgumentError
from ...util.paths import Path, format_path
from ...util.words import describe_type

F = TypeVar("F", bound=Callable[..., Any])


def is_graph_leaf(x: Any) -> bool:
    """Whether the flattening of arguments stops here: a graph node or a variable."""
    return isinstance(x, (Pytree, Variable)) or type(x) in GRAPH_REGISTRY


def static_argument(transform: str, value: Any, name: str) -> Static:
    """A static argument of this name, wrapped so that it is part of the structure.

    Raises:
        ArgumentError: it cannot be hashed, or it is a module or variable, whose values would be constants.
    """
    if any(map(is_graph_leaf, has_data(value))):
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported, nor are modules and variables",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value without arrays, which the compiled program would keep as they are now",
            do="do not mark the argument as static: modules are ordinary arguments",
        )
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value",
            do="pass a tuple instead of a list, or a dataclass with frozen=True; or do not mark the argument as static",
        ) from error
    return Static(value)


def with_statics(
    transform: str, f: Callable[..., Any], args: tuple[Any, ...], argnums: int | Iterable[int]
) -> tuple[Any, ...]:
    """Positional arguments, with static ones wrapped."""
    statics = {argnums} if isinstance(argnums, int) else set(argnums)
    statics = {number + len(args) if number < 0 else number for number in statics}
    if not statics:
        return args
    names = parameter_names(f)
    return tuple(static_argument(transform, arg, names.at(i)) if i in statics else arg for i, arg in enumerate(args))


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keyword arguments moved to positions, as far as the signature allows. (rule X1)"""
    if not kwargs:
        return args, kwargs
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs


class ParameterNames(NamedTuple):
    """What a function calls its positional arguments.

    Attributes:
        positional: the names of the parameters that take one argument each.
        rest: the name of the parameter that takes all others, such as ``models`` for ``*models``; ``None`` if the
            function has none, or no signature.
    """

    positional: tuple[str, ...] = ()
    rest: str | None = None

    def at(self, position: int) -> str:
        """The name of the argument at a position: ``x``, ``models[0]``; ``args[2]`` if the function has none for it."""
        if position < len(self.positional):
            return self.positional[position]
        return f"args[{position}]" if self.rest is None else f"{self.rest}[{position - len(self.positional)}]"


def parameter_names(function: Callable[..., Any] | None) -> ParameterNames:
    """What a function calls its positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ParameterNames()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return ParameterNames(names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None))


class ArgumentNames(inspect.Signature):
    """The signature of a function of arrays by which JAX calls them as the user does: ``model.kernel``.

    JAX asks for it when it traces the function, and uses the names in errors and programs.

    Args:
        names: returns the arguments with a name in place of each value, which may consist of several arrays.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Callable[[], tuple[Any, ...]]) -> None:
        kinds = {"_plait_given": inspect.Parameter.VAR_POSITIONAL, "_plait_named": inspect.Parameter.VAR_KEYWORD}
        super().__init__([inspect.Parameter(name, kind) for name, kind in kinds.items()])
        self._names = names

    def bind(self, /, *args: Any, **kwargs: Any) -> Any:
        names, treedef = jax.tree.flatten(self._names())
        try:
            found = dict(zip(names, treedef.flatten_up_to(args), strict=True))
        except ValueError:
            found = {}
        if kwargs or len(found) < len(names):  # names that are no better than JAX's own
            return super().bind(*args, **kwargs)
        return SimpleNamespace(arguments=found, args=args, kwargs={}, apply_defaults=lambda: None)


def named_as_user_s(function: F, f: Callable[..., Any], names: Callable[[], tuple[Any, ...]]) -> F:
    """A function of arrays, which JAX calls ``f``; ``names`` as for ``ArgumentNames``."""
    function.__wrapped__, function.__signature__ = f, ArgumentNames(names)  # type: ignore[attr-defined]
    return function


def argument_name(path: Any, names: ParameterNames) -> str:
    """The name of what is at a JAX path in ``(args, kwargs)``: ``batch["x"]``, ``models[1].kernel``.

    Args:
        names: the function's names; if it is not known, positional arguments are ``args[0]``, ``args[1]``, …
    """
    kind, first, *rest = map(jax_key_to_key, path)
    return joined(names.at(first) if kind == 0 else str(first), tuple(rest))


def joined(root: str, path: Path) -> str:
    """The path of an object in an argument: ``model.layers[0].kernel``."""
    text = format_path(tuple(path))
    return root + (text if not (root and text) or text.startswith("[") else f".{text}")
