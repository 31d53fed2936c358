"""The modes of a thread that Flax's programs may set, and how transforms read them. (G57, U32, S5)

Graph mode, the default, allows shared objects and cycles; tree mode rejects them. With graph updates, the default,
transforms propagate structural changes to the caller's objects; without them, and in tree mode, values only. Functions
resolve ``graph=`` and ``graph_updates=`` here; below, transforms ask a ``Crossing`` in each call, and know no mode.

**The door** makes the public functions that take ``graph=`` and ``graph_updates=`` from functions without modes.
``checked`` makes the public form of a function on graphs, ``carried`` that of a transform. Both keep the name,
documentation and signature of what they wrap, and add their keywords.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from ...core.nodes.module import Pytree
from ...core.nodes.nodes import Kind, Place, is_bound, visit
from ...core.settings import Restoring, Settings, declared
from ...errors import GraphError
from ...transforms.call import call
from ...transforms.call.arguments import joined
from ...util.environment import flag
from ...util.paths import describe_path
from ...util.words import describe_type


class _Modes(Settings):
    graph: bool = flag("PLAIT_GRAPH_MODE", "1")
    graph_updates: bool = flag("PLAIT_GRAPH_UPDATES", "1")

    def __setattr__(self, name: str, value: bool) -> None:
        touched.ever |= not value
        super().__setattr__(name, value)


modes = declared("modes", _Modes())


# Whether any thread ever left the default modes; until then fast paths need not check their thread's modes.
touched = types.SimpleNamespace(ever=not (_Modes.graph and _Modes.graph_updates))


class set_graph_mode(Restoring):
    """Set whether modules of this thread are graphs (the default) or plain trees without sharing.

    Takes effect immediately; as a context manager or decorator it restores the previous mode.

    Example:
        >>> shared = plait.Param(1.0)
        >>> with plait.set_graph_mode(False):
        ...     try:
        ...         _ = plait.split([shared, shared])
        ...     except plait.errors.PlaitError as error:
        ...         print(error.parts["at"], plait.set_graph_mode.current_value())
        [0] and [1] False
    """

    def __init__(self, value: bool, /) -> None:
        super().__init__(modes, graph=bool(value))

    @staticmethod
    def current_value() -> bool:
        """The mode of the thread."""
        return modes.graph


class set_graph_updates(Restoring):
    """Set whether transforms of this thread propagate structural changes (the default), or values only.

    Takes effect immediately; as a context manager or decorator it restores the previous mode.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> with plait.set_graph_updates(False):
        ...     plait.jit(lambda model: setattr(model, "extra", 1))(model)
        >>> hasattr(model, "extra"), plait.set_graph_updates.current_value()
        (False, True)
    """

    def __init__(self, value: bool, /) -> None:
        super().__init__(modes, graph_updates=bool(value))

    @staticmethod
    def current_value() -> bool:
        """The mode of the thread."""
        return modes.graph_updates


def graph_mode(graph: bool | None = None) -> bool:
    """Whether graph mode is on: the argument, else the setting of the thread."""
    return modes.graph if graph is None else graph


def graph_updates_mode(graph_updates: bool | None = None) -> bool:
    """Whether transforms propagate structural changes: the argument, else the mode of the thread."""
    return modes.graph_updates if graph_updates is None else graph_updates


def check_mode(node: Any, graph: bool | None, labels: Callable[[], Sequence[str]] | None = None) -> None:
    """Raise for anything but a tree in tree mode.

    Args:
        node: the graph.
        graph: whether graph mode is on; ``None`` means the setting of the thread.
        labels: the names of the elements of ``node``, if it is a sequence of arguments.

    Raises:
        GraphError: an object is reached by two paths (both are named), or a class says ``pytree=False``.
    """
    if graph_mode(graph):
        return

    def where(place: Place) -> str:
        return describe_path(place.path) if labels is None else joined(labels()[int(place.path[0])], place.path[1:])

    for place in visit(node):
        value, kind = place.value, type(place.value).__name__
        if place.first is not None and not _is_of_a_method(place):
            raise GraphError(
                f"Duplicate {kind} found at paths of one tree: tree mode takes no shared objects and no cycles",
                at=f"{where(place.first)} and {where(place)}",
                found=f"the same {kind} at both (a duplicate)",
                expected="each object at one path",
                do="use graph mode (graph=True), or put a separate object at each path: plait.clone",
            )
        if isinstance(value, Pytree) and not value._pytree__is_tree:
            raise GraphError(
                "tree mode takes only classes that are JAX pytrees",
                at=where(place),
                found=f"{describe_type(value)}, whose class says pytree=False",
                expected="classes that are pytrees",
                do="use graph mode (graph=True)",
            )


def _is_of_a_method(place: Place) -> bool:
    """Whether a place is that of the owner of a bound method, or of an argument of a partial."""
    owner = place.owner
    while owner is not None and owner.kind is Kind.PYTREE:
        if is_bound(owner.value):
            return True
        owner = owner.owner
    return False


@dataclasses.dataclass(frozen=True)
class Crossing(call.Crossing):
    """The modes passed to one transform; the modes of the thread are read when it is called.

    Attributes:
        graph: whether shared objects and cycles are allowed; ``None`` means the mode of the thread.
        graph_updates: whether structural changes are propagated; ``None`` means the mode of the thread.
    """

    graph: bool | None = None
    graph_updates: bool | None = None

    touched = touched  # whether any thread ever left the default modes

    @property
    def updates(self) -> bool:
        """Whether this call propagates structural changes; otherwise, and for every tree, values only."""
        return graph_mode(self.graph) and graph_updates_mode(self.graph_updates)

    def check(self, roots: Any, labels: Callable[[], Sequence[str]] | None = None) -> None:
        """Raise for arguments that are not trees, in tree mode; ``labels`` as in ``check_mode``.

        Raises:
            GraphError: an object is reached by two paths (both are named), or a class says ``pytree=False``.
        """
        check_mode(roots, self.graph, labels)


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
