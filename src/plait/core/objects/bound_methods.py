"""Methods and partials of nodes as part of the graph.

``self.act = self.gate`` stores a method that is bound to the module itself. Its owner is a reference like any other, so
a copy of the module gets a method of the copy; other methods are static values. (rule G1)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from .nodes import BY_VALUE, PYTREE_REGISTRY, Kind, PytreeNodeImpl, StaticElem, kind_of, pytree_impl, unwrapped

_IDENTIFIED = (Kind.VARIABLE, Kind.GRAPH)


def is_bound(value: Any) -> bool:
    """Whether a value is a method or partial of a node or variable."""
    return type(value) in BY_VALUE and _refers(value)


def _refers(value: Any) -> bool:
    """Whether a value is a node or variable, or a method, partial or plain container of such values."""
    cls = type(value)
    if cls is MethodType:
        return _refers(value.__self__)
    if cls is functools.partial:
        return any(map(_refers, (value.func, value.args, value.keywords)))
    if cls is list or cls is tuple or cls is dict:
        return any(map(_refers, value.values() if cls is dict else value))
    return kind_of(value) in _IDENTIFIED


def _kind(value: Any) -> Kind:
    return Kind.PYTREE if _refers(value) else Kind.STATIC


def _partial(args: tuple[Any, ...], func: Callable[..., Any], keywords: dict[str, Any]) -> functools.partial[Any]:
    return functools.partial(func, *args, **keywords)


def _parts(method: MethodType) -> tuple[Any, None]:
    return (("__func__", StaticElem(method.__func__)), ("__self__", method.__self__)), None


BY_VALUE.update({MethodType: _kind, functools.partial: _kind})
PYTREE_REGISTRY[MethodType] = PytreeNodeImpl(
    MethodType,
    _parts,
    lambda items, _: MethodType(*(child for _, child in items)),
)
PYTREE_REGISTRY[functools.partial] = PytreeNodeImpl(
    functools.partial,
    lambda node: ((("args", node.args), ("func", node.func), ("keywords", node.keywords)), None),
    lambda items, _: _partial(**dict(items)),
)


def after_their_owners(items: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The attributes of a node, with methods and partials last if the other attributes lead to all that they refer to,
    which then has its path without them."""
    bound = [item for item in items if is_bound(item[1])]
    if not bound:
        return items
    known = _ids_of([value for _, value in items if not is_bound(value)], inside=True)
    late = [item for item in bound if _ids_of([item[1]], inside=False) <= known]
    names = [name for name, _ in late]
    return [*(item for item in items if item[0] not in names), *late]


def _ids_of(values: list[Any], *, inside: bool) -> set[int]:
    """The identities of the nodes and variables in some values.

    Args:
        inside: whether also of those inside these nodes.
    """
    found: set[int] = set()
    while values:
        value = values.pop()
        kind = kind_of(value)
        if kind in _IDENTIFIED:
            if inside and id(value) not in found and kind is Kind.GRAPH:
                values += [*getattr(value, "__dict__", {}).values(), *getattr(value, "_pytree__elements", ())]
            found.add(id(value))
        elif kind is Kind.PYTREE and value is not None:
            values += [unwrapped(child) for _, child in pytree_impl(type(value)).flatten(value)[0]]
    return found
