"""What a value is made of, beyond its class: plain data, native code, functions in holders. (rule W3)"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .._compat import ArrayImpl

PLAIN = frozenset({bool, int, float, str, type(None)})
_SCALARS = PLAIN | {bytes, complex, range, slice, np.ndarray, ArrayImpl}
# Read from a value by these, since a subclass may iterate in another way.
ITEMS: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: dict(dict.items(value)), list: lambda value: [*list.__iter__(value)],
    tuple: lambda value: (*tuple.__iter__(value),), set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)), str: str.__str__, int: int.__int__,
    float: float.__float__, bytes: lambda value: bytes.__getitem__(value, slice(None)),
}  # fmt: skip
HEAP = 1 << 9  # the flag of classes that are not static structures of C
# What holds functions, and in which attributes.
HOLDERS = {
    staticmethod: ("__func__",), classmethod: ("__func__",), property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",), functools.partialmethod: ("func",),
}  # fmt: skip


def held_by(value: Any) -> list[Any]:
    """The functions of a property or method; none for other values."""
    return [getattr(value, name) for kind, names in HOLDERS.items() if isinstance(value, kind) for name in names]


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts and arrays."""
    kind = type(value)
    if kind in _SCALARS or isinstance(value, (np.generic, enum.Enum)):
        return True
    try:
        if kind is dict:
            return all(is_plain(each) for item in value.copy().items() for each in item)
        return kind in (tuple, list, set, frozenset) and all(map(is_plain, [*value]))
    except RecursionError:
        return False


def registered_with(cls: type) -> list[str]:
    """The names of the classes that were registered with an abstract base class, or with a class that inherits it."""
    if not isinstance(cls, abc.ABCMeta):
        return []
    names: set[str] = set()
    below = [cls]
    for each in below:
        registered = [reference() for reference in _abc._get_dump(each)[0]]
        names |= {f"{known.__module__}:{known.__qualname__}" for known in registered if known is not None}
        below += [known for known in each.__subclasses__() if isinstance(known, abc.ABCMeta)]
    return sorted(names)


def is_python(cls: type) -> bool:
    """Whether a class is written in Python. Some in C look alike, but have a constructor of their own."""
    constructor = vars(cls).get("__new__")
    is_native = isinstance(constructor, types.BuiltinFunctionType) and constructor.__self__ is cls
    return bool(cls.__flags__ & HEAP) and not is_native
