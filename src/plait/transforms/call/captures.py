"""Models that a jitted function captures instead of taking as an argument.

Such a model becomes a constant of the compiled program, so later changes to it have no effect. When a function is
traced, its closure and the globals that its code loads are searched for objects, and a warning names them. Variables
and modules raise an error if they are changed in the trace. Plain lists and dicts cannot do that, so they are compared
afterwards.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import operator
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ..._compat import top_level_trace
from ...core.graph.walks import find_walk
from ...core.objects.nodes import Kind, get_node_impl, kind_of, unwrapped
from ...core.objects.pytree import Pytree
from ...core.objects.trace_guard import raise_foreign_trace
from ...core.objects.variables import Variable
from ...errors import CapturedModelWarning, GraphError, PlaitError
from ...notices import warn
from .functions import FUNCTIONS, RuledFunction
from .prefixes import is_graph_leaf

_LONGEST = 1_000  # longer containers contain data
_MOST = 200  # the maximal number of functions reached from one function
_LIBRARIES = {__name__.partition(".")[0], "jax", "numpy", "functools", "builtins", "math"}


def warn_about_captures(f: Callable[..., Any], name: str) -> None:
    """Warn if a function captures objects with variables.

    Warns:
        CapturedModelWarning: names the Python variables that hold them.
    """
    captured = sorted({label for label, value in _captured(f) if _holds_arrays(value)})
    if captured:
        warn(
            CapturedModelWarning,
            f"{name}: the function {_name(f)!r} captures {', '.join(captured)} from outside. Its values "
            "become constants of the compiled program, which later changes do not affect. Pass it as an argument.",
        )


def captures_objects(f: Callable[..., Any]) -> bool:
    """Whether a function uses modules or variables that are not among its arguments, as far as can be detected.

    The functions that it calls by name are examined too, except those of installed libraries.
    """
    return any(reached is _TOO_MANY or next(_captured(reached), None) is not None for reached in _reached(f))


def captured_objects(f: Callable[..., Any]) -> dict[str, Any]:
    """The objects that ``captures_objects`` detects, each once, by the first name that leads to one."""
    found: dict[str, Any] = {}
    for reached in _reached(f):
        for label, value in () if reached is _TOO_MANY else _captured(reached):
            if not any(value is known for known in found.values()):
                found.setdefault(label, value)
    return found


_TOO_MANY: Any = object()


def _reached(f: Callable[..., Any]) -> Iterator[Any]:
    """A function and those that it leads to, until they are too many."""
    found = [f]
    for each in found:
        yield each
        if len(found) > _MOST:
            yield _TOO_MANY
            return
        inner = [value for value in _with_inner_functions(each)[1:] if not _is_library(value)]
        each = getattr(each, "__wrapped__", each)
        if isinstance(each, FunctionType):
            named = (each.__globals__.get(label) for label in _loaded_globals(each.__code__))
            inner += [value for value in named if isinstance(value, FUNCTIONS) and not _is_library(value)]
        found += [value for value in inner if not any(value is known for known in found)]


def _is_library(f: Any) -> bool:
    while isinstance(f, functools.partial):
        f = f.func
    return (getattr(f, "__module__", None) or "").partition(".")[0] in _LIBRARIES


@contextlib.contextmanager
def watch_captured_containers(f: Callable[..., Any]) -> Iterator[None]:
    """Raise if a traced function changed plain lists or dicts of modules that it captures.

    Their contents are restored, even if the function raised.

    Raises:
        TraceContextError: names the path of the container, and both traces.
    """
    held = [found for each in _with_inner_functions(f) for _, value in _captured(each) for found in _containers(value)]
    try:
        yield
    finally:
        changed = [found for found in held if not _holds(found.container, found.saved)]
        for found in changed:
            _refill(found.container, found.saved)
    for found in changed[:1]:
        raise_foreign_trace(found.trace, found.container, "change the contents of a")


def _with_inner_functions(f: Any) -> list[Any]:
    """A function, the functions that come with it or are in its closure, and theirs."""
    found = [f]
    for each in found:
        inner: list[Any] = [*each.functions] if isinstance(each, RuledFunction) else []
        each = getattr(each, "__wrapped__", each)
        if isinstance(each, functools.partial):
            inner.append(each.func)
        cells = (each.__closure__ or ()) if isinstance(each, FunctionType) else ()
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            inner += [cell.cell_contents for cell in cells]
        found += [g for g in inner if isinstance(g, FUNCTIONS) and not any(g is known for known in found)]
    return found


class _Held(NamedTuple):
    """A container, a copy of it, and the trace of the module that it belongs to."""

    container: Any
    saved: Any
    trace: Any


def _containers(root: Any) -> Iterator[_Held]:
    """The plain lists and dicts below a graph node."""
    seen: set[int] = set()
    stack = [(root, top_level_trace)]
    while stack:
        value, trace = stack.pop()
        kind = kind_of(value)
        if kind is Kind.GRAPH and id(value) not in seen:
            seen.add(id(value))
            trace = value._info.trace if isinstance(value, Pytree) else trace
        elif kind is not Kind.PYTREE:
            continue
        if isinstance(value, (list, dict)):
            yield _Held(value, value.copy(), trace)
        with contextlib.suppress(GraphError):  # a node that cannot be walked raises its own error elsewhere
            children = get_node_impl(value).flatten(value)[0]  # type: ignore[union-attr]
            stack.extend((unwrapped(child), trace) for _, child in children)


def _holds(container: Any, saved: Any) -> bool:
    """Whether a container has the same objects at the same positions. ``==`` on arrays does not return a bool."""
    if isinstance(container, dict):
        same = [*container] == [*saved]
        return same and all(map(operator.is_, container.values(), saved.values()))
    return len(container) == len(saved) and all(map(operator.is_, container, saved))


def _refill(container: Any, saved: Any) -> None:
    container.clear()
    (container.update if isinstance(container, dict) else container.extend)(saved)


def _name(f: Any) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, Variable):
        return True
    try:
        return bool(find_walk((value,)).cells)
    except PlaitError:  # a value that cannot be walked is an error only as an argument
        return False


def _captured(f: Any) -> Iterator[tuple[str, Any]]:
    if is_graph_leaf(f):
        yield f"the {type(f).__name__} itself", f
    if isinstance(f, functools.partial):
        bound = [*enumerate(f.args), *f.keywords.items()]
        yield from ((f"argument {label} of the partial", value) for label, value in bound if is_graph_leaf(value))
        yield from _captured(f.func)
    f = getattr(f, "__wrapped__", f)
    if not isinstance(f, FunctionType):
        return
    for label, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield from _objects(label, value)
    for label in _loaded_globals(f.__code__):
        yield from _objects(label, f.__globals__.get(label))


def _objects(label: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The objects in a Python variable, directly or in plain containers, whose keys need no order."""
    stack, seen = [value], set()
    while stack:
        each = stack.pop()
        if is_graph_leaf(each):
            yield label, each
        elif isinstance(each, (list, tuple, dict)) and len(each) <= _LONGEST and id(each) not in seen:
            seen.add(id(each))
            stack += each.values() if isinstance(each, dict) else each


@functools.lru_cache(maxsize=1024)
def _loaded_globals(code: CodeType) -> tuple[str, ...]:
    names = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _loaded_globals(constant)
    return tuple(names)
