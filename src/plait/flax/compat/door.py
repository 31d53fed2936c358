"""The door: public functions that take ``graph=`` and ``graph_updates=``, made from functions without modes.

``checked`` makes the public form of a function on graphs, ``carried`` that of a transform. Both keep the name,
documentation and signature of what they wrap, and add their keywords.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from .modes import Crossing, check_mode

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_GRAPH = (
    "whether shared objects and cycles are allowed or raise an error (tree mode); ``None`` means the thread's mode."
)
_UPDATES = "whether structural changes are propagated, or values only; ``None`` means the thread's mode."


class Checked(Protocol[P, R]):
    """A function that takes ``graph=`` besides its own arguments."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, graph: bool | None, **kwargs: Any) -> Any: ...


class Carried(Protocol[P, R]):
    """A transform that takes ``graph=`` and ``graph_updates=`` besides its own arguments."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(
        self, *args: Any, graph: bool | None = ..., graph_updates: bool | None = ..., **kwargs: Any
    ) -> Any: ...


def checked(function: Callable[P, R], /, *, at: int = 0) -> Checked[P, R]:
    """The public form of a function on graphs: in tree mode it rejects anything but trees.

    Args:
        function: the function; it has no ``graph``.
        at: the position of the argument that is the graph.
    """
    name = [*inspect.signature(function).parameters][at]

    def public(*args: Any, graph: bool | None = None, **kwargs: Any) -> Any:
        check_mode(args[at] if len(args) > at else kwargs.get(name), graph)
        return function(*args, **kwargs)  # type: ignore[call-arg]

    return _as_public(public, function, {"graph": _GRAPH})


def checked_result(function: Callable[P, R], /) -> Checked[P, R]:
    """The same for a function whose first argument makes the graph."""

    def public(make: Callable[[], Any], /, *args: Any, graph: bool | None = None, **kwargs: Any) -> Any:
        def made() -> Any:
            node = make()
            check_mode(node, graph)
            return node

        return function(made, *args, **kwargs)  # type: ignore[call-arg]

    return _as_public(public, function, {"graph": _GRAPH})


def carried(transform: Callable[P, R], /) -> Carried[P, R]:
    """The public form of a transform, which takes the two modes as one ``crossing=`` keyword.

    Args:
        transform: the transform; its keyword ``crossing`` is hidden.
    """

    def public(*args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any) -> Any:
        return transform(*args, crossing=Crossing(graph, graph_updates), **kwargs)  # type: ignore[call-arg]

    return _as_public(public, transform, {"graph": _GRAPH, "graph_updates": _UPDATES}, hidden="crossing")


def by_position(public: Callable[P, R], /) -> Callable[P, R]:
    """The same function, which also takes its modes by position, after its own arguments."""
    signature = inspect.signature(public)
    placed = (parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD) for parameter in signature.parameters.values())
    signature = signature.replace(parameters=[*placed])

    @functools.wraps(public)
    def function(*args: Any, **kwargs: Any) -> Any:
        return public(**signature.bind(*args, **kwargs).arguments)  # type: ignore[call-arg]

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _as_public(public: Any, function: Callable[..., Any], added: Mapping[str, str], hidden: str = "") -> Any:
    """Give the public form the name, documentation and signature of what it wraps, with the keywords added."""
    functools.update_wrapper(public, function)
    public.__module__ = sys._getframe(2).f_globals["__name__"]  # where it is assigned, so it can be pickled
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != hidden]
    rest = [parameter for parameter in own if parameter.kind is parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="bool | None")
        for name in added
    ]
    public.__signature__ = signature.replace(parameters=[*own[: len(own) - len(rest)], *keywords, *rest])
    public.__doc__ = with_arguments(function.__doc__, added)
    return public


def with_arguments(text: str | None, added: Mapping[str, str]) -> str | None:
    """A docstring with these entries added to its section ``Args``."""
    if text is None:
        return None
    lines = inspect.cleandoc(text).splitlines()
    entries = [f"    {name}: {what}" for name, what in added.items()]
    if "Args:" in lines:
        start = lines.index("Args:")
        end = next((place for place in range(start, len(lines)) if not lines[place]), len(lines))
        lines[end:end] = entries
    else:
        sections = ("Returns:", "Raises:", "Warns:", "Example:", "Reference:")
        place = next((place for place, line in enumerate(lines) if line.startswith(sections)), None)
        block = ["Args:", *entries]
        lines[len(lines) if place is None else place : place] = ["", *block] if place is None else [*block, ""]
    return "\n".join(lines)
