"""Models that a function captures instead of taking as an argument.

Such a model becomes a constant of the compiled program, so later changes to it have no effect. Reads of it are
recorded in ``core/variables/cells.py``; here it gets a name, for a warning and for the names of modules in programs:
that of the closure's variable, global or default through which the function reaches it. Only texts depend on it.

Variables and modules raise an error if they are changed in another trace. Plain lists and dicts cannot do that, so
those of the models that have a name are compared afterwards. (rule G64)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

from ...errors import CapturedModelWarning
from ...typing import Value
from ...util.jax_versions import trace_state
from ...util.notices import warn
from ...util.static_values import closure_contents
from ..graph.walks import is_graph_leaf
from ..nodes.nodes import Kind, children_if_any, visit
from ..variables.variables import Variable
from .guard import raise_foreign_trace

_LIBRARIES = (__name__.partition(".")[0], "jax")  # their functions capture no model of the user's

# Functions that were warned about.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_about_captures(f: object, name: str, found: Mapping[int, object]) -> None:
    """Warn, once for each function, that it has read variables from outside.

    Args:
        found: the cells and nodes that were read, by identity.

    Warns:
        CapturedModelWarning: names the Python variables that hold them.
    """
    with contextlib.suppress(TypeError):  # without weak references
        if f in _told:
            return
        _told.add(f)
    named = [label for label, value in named_captures(f).items() if not found.keys().isdisjoint(_parts_of(value))]
    captured = sorted(named) or ["an object that belongs to another trace"]
    warn(
        CapturedModelWarning,
        f"{name}: the function {getattr(f, '__name__', type(f).__name__)!r} captures {', '.join(captured)} from "
        "outside. Its values become constants of the compiled program, which later changes do not affect. Pass it "
        "as an argument.",
    )


def _parts_of(value: Value) -> Iterator[int]:
    """The identities of the nodes and cells of an object."""
    for place in visit(value, children=children_if_any):
        yield id(place.value._cell if isinstance(place.value, Variable) else place.value)


def named_captures(f: object) -> dict[str, object]:
    """The objects that a function, and the functions that it names, have by closure, global, default or partial."""
    found: dict[str, object] = {}
    stack, seen = [("", f)], set()
    while stack:
        label, each = stack.pop()
        if is_graph_leaf(each):
            found.setdefault(label or f"the {type(each).__name__} itself", each)
        elif id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, (list, dict, tuple)):
                stack += [(label, item) for item in (each.values() if isinstance(each, dict) else each)]
            elif isinstance(each, functools.partial):
                given = [*enumerate(each.args), *each.keywords.items()]
                stack += [(f"argument {key} of the partial", value) for key, value in given] + [("", each.func)]
            elif isinstance(each, MethodType):
                stack += [("self", each.__self__), ("", each.__func__)]
            elif isinstance(each, FunctionType) and str(each.__module__).partition(".")[0] not in _LIBRARIES:
                stack += _named_in(each)
    return found


def _named_in(f: FunctionType) -> list[tuple[str, object]]:
    """What the closure, globals, defaults and wrapped function of a function hold, by their names."""
    code, defaults = f.__code__, f.__defaults__ or ()
    found: list[tuple[str, object]] = [("", getattr(f, "__wrapped__", None)), *(f.__kwdefaults__ or {}).items()]
    # The code may have been replaced by one with other parameters.
    found += zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False)
    found += [(name, f.__globals__.get(name)) for name in sorted(_names(code))]
    return [*found, *zip(code.co_freevars, closure_contents(f), strict=True)]


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The names that code, and the functions defined in it, use."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(code.co_names).union(*inner)


@contextlib.contextmanager
def refusing_container_changes(f: object) -> Iterator[None]:
    """Raise if the block, which calls a function, changed plain lists or dicts of models that it captures.

    Their contents are restored, even if the block raised.

    Raises:
        TraceContextError: names the path of the container, and both traces.
    """
    containers = _captured_containers(f)
    held = [(container, node, container.copy()) for container, node in containers]
    before, changed = _identities(containers), []
    try:
        yield
    finally:
        if _identities(containers) != before:
            changed = [each for each in held if not _holds(each[0], each[2])]
        for container, _, saved in changed:
            container.clear()
            (container.update if isinstance(container, dict) else container.extend)(saved)
    for container, node, _ in changed[:1]:
        raise_foreign_trace(node._pytree__info.trace, container, "change the contents of a")


def _captured_containers(f: object) -> list[tuple[Any, Any]]:
    """The plain lists and dicts of the models of other traces that a function captures, each with its node."""
    here, found = trace_state.value, {}
    for model in named_captures(f).values():
        for place in visit(model, children=children_if_any):
            if type(place.value) not in (list, dict):
                continue
            node = place.owner
            while node is not None and node.kind is Kind.PYTREE:
                node = node.owner
            info = None if node is None else getattr(node.value, "_pytree__info", None)
            if node is not None and info is not None and info.trace is not here:
                found[id(place.value)] = place.value, node.value
    return [*found.values()]


def _identities(containers: Sequence[tuple[Any, Any]]) -> tuple[list[int], list[int], list[int]]:
    """What containers hold, without a call of a Python function for each: lengths, items and keys, values of dicts."""
    held = [container for container, _ in containers]
    values = [container.values() for container in held if type(container) is dict]
    chained = itertools.chain.from_iterable
    return [*map(len, held)], [*map(id, chained(held))], [*map(id, chained(values))]


def _holds(container: Any, saved: Any) -> bool:
    """Whether a container has the same objects at the same positions. ``==`` on arrays does not return a bool."""
    if isinstance(container, dict):
        same = [*container] == [*saved]
        return same and all(map(operator.is_, container.values(), saved.values()))
    return len(container) == len(saved) and all(map(operator.is_, container, saved))
