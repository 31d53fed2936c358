"""Models that a function captures instead of taking as an argument.

Such a model becomes a constant of the compiled program, so later changes to it have no effect. When a function is
traced, what it reads by a name is searched for objects: its closure, its globals and defaults, and the attributes that
its code names of plain objects and modules of Python. A warning names those of a jitted function. Functions that it
leads to are searched too, except those of installed packages.

Variables and modules raise an error if they are changed in the trace. Plain lists and dicts cannot do that, so they are
compared afterwards.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dis
import functools
import gc
import inspect
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

from ..._compat import top_level_trace, trace_state
from ...core.graph.graphdef import GraphDef, NodeDef, StaticAttribute, iter_places, kept_on
from ...core.graph.walks import find_walk
from ...core.objects.nodes import Static
from ...core.objects.pytree import Pytree
from ...core.objects.trace_guard import raise_foreign_trace
from ...core.objects.variables import Variable
from ...core.objects.visit import children_if_any, visit
from ...errors import CapturedModelWarning, PlaitError
from ...notices import warn
from ...origins import is_users, is_users_module
from .functions import FUNCTIONS, RuledFunction
from .gather import Structure
from .prefixes import is_graph_leaf

_LONGEST = 1_000  # longer containers contain data
_MOST = 1_000  # the maximal number of functions reached from one function


def warn_about_captures(f: Callable[..., Any], name: str) -> None:
    """Warn if a function captures objects with variables.

    Warns:
        CapturedModelWarning: names the Python variables that hold them.
    """
    found = ((label, value) for label, value in _read(f) if not isinstance(value, _CALLED) and value is not _UNSEEN)
    captured = sorted({label for label, value in found if _holds_arrays(value)})
    if captured:
        warn(
            CapturedModelWarning,
            f"{name}: the function {getattr(f, '__name__', type(f).__name__)!r} captures {', '.join(captured)} from "
            "outside. Its values become constants of the compiled program, which later changes do not affect. Pass it "
            "as an argument.",
        )


def captures_objects(f: Callable[..., Any], structure: Structure) -> bool:
    """Whether a function uses modules or variables that are not among its arguments, as far as can be detected.

    Args:
        structure: that of the arguments, whose methods, and functions among the static ones, it may call.
    """
    return next(_search(f, structure), None) is not None


def captured_objects(f: Callable[..., Any], structure: Structure | None = None) -> dict[str, Any]:
    """The objects that ``captures_objects`` detects, each once, by the first name that leads to one."""
    found: dict[str, Any] = {}
    for label, value in _search(f, structure):
        if value is not _UNSEEN and not any(value is known for known in found.values()):
            found.setdefault(label, value)
    return found


@contextlib.contextmanager
def watch_captured_containers(f: Callable[..., Any], structure: Structure | None = None) -> Iterator[list[Any]]:
    """Raise if a function changed plain lists or dicts of modules that it captures from a different trace.

    Their contents are restored, even if the function raised.

    Args:
        structure: that of the arguments.

    Yields:
        What the function captures.

    Raises:
        TraceContextError: names the path of the container, and both traces.
    """
    captured, here = [*captured_objects(f, structure).values()], trace_state.value
    held = [found for value in captured for found in _containers(value) if found.trace is not here]
    try:
        yield captured
    finally:
        changed = [found for found in held if not _holds(found.container, found.saved)]
        for found in changed:
            _refill(found.container, found.saved)
    for found in changed[:1]:
        raise_foreign_trace(found.trace, found.container, "change the contents of a")


# The search -----------------------------------------------------------------------------------------------------------

_UNSEEN: Any = object()
_CALLED = (*FUNCTIONS, MethodType)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, MappingProxyType)
# What leads to an object without naming it as an attribute or item.
_OPAQUE = (weakref.ref, contextvars.ContextVar, threading.local, type(functools.cache(len)))
_BY_SYNTAX = frozenset({"__call__", "__getitem__", "__getattr__"})  # what ``h(x)``, ``h[x]`` and ``h.x`` call
_BY_TEXT = frozenset({"getattr", "vars", "attrgetter", "__dict__", "__getattribute__"})
_NO_OBJECTS = frozenset({int, float, str, bool, type(None), BuiltinFunctionType})


def _search(f: Any, structure: Structure | None) -> Iterator[tuple[str, Any]]:
    """The objects that a function, the methods of its arguments and the functions that they lead to read by a name;
    ``_UNSEEN`` for those of further functions."""
    found = [f] if structure is None else [f, *_functions_in(structure)]
    seen = set(map(_identity, found))
    for each in found:
        if len(found) > _MOST:
            yield "", _UNSEEN
            return
        for label, value in _read(each):
            if not isinstance(value, _CALLED):
                yield label, value
            elif (known := _identity(value)) not in seen:
                seen.add(known)
                found.append(value)


def _identity(f: Any) -> tuple[int, int]:
    """That of a function; of a method, which Python makes anew each time, that of its function and owner."""
    return id(getattr(f, "__func__", f)), id(getattr(f, "__self__", None))


def _read(f: Any) -> Iterator[tuple[str, Any]]:
    """The objects and functions that a function reads by a name, or that come with it."""
    owner = None
    if is_graph_leaf(f):
        yield f"the {type(f).__name__} itself", f
    if isinstance(f, RuledFunction):
        yield from (("", each) for each in f.functions)
    if isinstance(f, functools.partial):
        yield "", f.func
        for label, value in [*enumerate(f.args), *f.keywords.items()]:
            yield from _leads(f"argument {label} of the partial", value, frozenset())
    if isinstance(f, MethodType):
        f, owner = f.__func__, f.__self__
    wrapped = getattr(f, "__wrapped__", None)
    if wrapped is not None and not is_graph_leaf(wrapped):
        yield from _read(wrapped if owner is None else MethodType(wrapped, owner))
    if not isinstance(f, FunctionType) or (wrapped is not None and not is_users(f)):
        return
    code = f.__code__
    names = _names(code)
    parameters = code.co_varnames[: code.co_argcount]
    defaults = f.__defaults__ or ()
    named = parameters[len(parameters) - len(defaults) :]
    given = [*zip(named, defaults, strict=True), *(f.__kwdefaults__ or {}).items()]
    if owner is not None and parameters and not is_graph_leaf(owner):
        given.append((parameters[0], owner))
    for label, cell in zip(code.co_freevars, f.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            given.append((label, cell.cell_contents))
    given += [(label, f.__globals__[label]) for label in _loaded_globals(code) if label in f.__globals__]
    for label, value in given:
        if type(value) not in _NO_OBJECTS:
            yield from _leads(label, value, names)


def _leads(label: str, value: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The objects and functions in a Python variable: itself, in plain containers, or as an attribute with one of these
    names."""
    stack, seen = [(label, value)], set()
    while stack:
        label, each = stack.pop()
        if isinstance(each, _CALLED):
            if not _is_library(each):
                yield label, each
        elif is_graph_leaf(each):
            yield label, each
        elif id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, _OPAQUE):
                stack += [(label, item) for item in _led_to(each)]
            elif isinstance(each, _CONTAINERS):
                if len(each) <= _LONGEST:
                    items = [*(each.values() if isinstance(each, Mapping) else each)]  # at once: others may change it
                    stack += [(label, item) for item in items]
            else:
                stack += [(f"{label}.{name}", item) for name, item in _attributes(each, names)]


def _led_to(value: Any) -> list[Any]:
    """What a reference, a variable of a context or thread, or a function with a cache leads to now."""
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, contextvars.ContextVar):
        return [value.get(None)]
    if isinstance(value, threading.local):
        return [vars(value)]
    held = [each for cache in gc.get_referents(value) if type(cache) is dict for each in cache.values()]
    links = [each for each in held if type(each).__name__ == "_lru_list_elem"]  # of a cache with a limit
    return [value.__wrapped__, *held, *gc.get_referents(*links)]


def _is_library(f: Any) -> bool:
    f = f.__func__ if isinstance(f, MethodType) else f
    f = inspect.unwrap(f) if isinstance(f, FunctionType) else f
    return isinstance(f, FunctionType) and not is_users(f)


def _attributes(value: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The attributes with these names of a module of Python, a class or a plain object of the user's."""
    if isinstance(value, ModuleType):
        scope = vars(value)
        if is_users_module(value):
            yield from ((name, scope[name]) for name in names & scope.keys())
    elif is_users(value):
        is_class = isinstance(value, type)
        bases = () if is_class else type(value).__mro__
        for name in names.union(name for name in _BY_SYNTAX if any(name in vars(base) for base in bases)):
            found = inspect.getattr_static(value, name, None)
            function: Any = found.fget if isinstance(found, property) else found
            if isinstance(found, MemberDescriptorType) and not is_class:
                yield name, getattr(value, name, None)
            elif isinstance(found, classmethod):
                yield name, MethodType(found.__func__, value if is_class else type(value))
            elif found is not None:
                is_method = isinstance(function, FunctionType) and not is_class
                yield name, MethodType(function, value) if is_method else getattr(function, "__func__", function)


def _functions_in(structure: Structure) -> Iterator[Any]:
    """The functions that a structure contains, and the methods of its classes."""
    for root in structure.roots:
        yield from kept_on(root, "_methods", _methods_of)
    stack = [structure.treedef]
    while stack:
        treedef = stack.pop()
        node = treedef.node_data()
        if node is not None:
            if node[0] is Static and isinstance(node[1].value, _CALLED):
                yield node[1].value
            stack += treedef.children()


def _methods_of(root: GraphDef) -> tuple[Any, ...]:
    """The methods of the user's classes in a structure, and the functions among its static attributes."""
    found: dict[int, Any] = {}
    classes: dict[type, None] = {}
    for _, part in iter_places(root):
        if type(part) is StaticAttribute:
            if isinstance(part.value, _CALLED):
                found[id(part.value)] = part.value
        elif isinstance(part, NodeDef):
            classes |= dict.fromkeys(base for base in part.type.__mro__ if is_users(base))
    for cls in classes:
        for value in vars(cls).values():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                found[id(function)] = function
    return tuple(found.values())


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """All names that code uses, also as strings where it calls ``getattr`` and the like, with the functions in it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    texts = () if _BY_TEXT.isdisjoint(code.co_names) else [each for each in code.co_consts if isinstance(each, str)]
    return frozenset([*code.co_names, *texts]).union(*inner)


@functools.lru_cache(maxsize=4096)
def _loaded_globals(code: CodeType) -> tuple[str, ...]:
    names = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"]
    if "globals" in names:
        names += [constant for constant in code.co_consts if isinstance(constant, str)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _loaded_globals(constant)
    return tuple(dict.fromkeys(names))


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, Variable):
        return True
    try:
        return bool(find_walk((value,)).cells)
    except PlaitError:  # a value that cannot be walked is an error only as an argument
        return False


# Containers -----------------------------------------------------------------------------------------------------------


class _Held(NamedTuple):
    """A container, a copy of it, and the trace of the module that it belongs to."""

    container: Any
    saved: Any
    trace: Any


def _containers(root: Any) -> Iterator[_Held]:
    """The plain lists and dicts below a graph node. A node that cannot be walked raises its own error elsewhere."""
    traces: dict[int, Any] = {}
    for place in visit(root, children=children_if_any):
        above = top_level_trace if place.owner is None else traces[id(place.owner)]
        traces[id(place)] = place.value._info.trace if isinstance(place.value, Pytree) else above
        if place.enter and isinstance(place.value, (list, dict)):
            yield _Held(place.value, place.value.copy(), traces[id(place)])


def _holds(container: Any, saved: Any) -> bool:
    """Whether a container has the same objects at the same positions. ``==`` on arrays does not return a bool."""
    if isinstance(container, dict):
        same = [*container] == [*saved]
        return same and all(map(operator.is_, container.values(), saved.values()))
    return len(container) == len(saved) and all(map(operator.is_, container, saved))


def _refill(container: Any, saved: Any) -> None:
    container.clear()
    (container.update if isinstance(container, dict) else container.extend)(saved)
