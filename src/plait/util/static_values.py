"""Static values: when two of them count as equal structure.

A static attribute is part of a graphdef, and so of a compilation key. Two static values are equal structure if their
*keys* are equal. Python's ``==`` is too loose for that (``1 == True == 1.0``, ``0.0 == -0.0``), and too strict for
functions that a factory creates in each call (``optax.adam(1e-3)``), so keys are built here:

* numbers, strings and ``None`` by type and value, floats by their bits, so that nan is nan and 0.0 is not -0.0;
* tuples and frozensets by their elements;
* functions defined inside a function by code, and those of libraries, such as Optax, by the keys of what they close
  over, too; a function of the user's that closes over something, or has defaults, is equal only to itself, as long as
  that has the same keys, since it may change; other functions by identity; ``functools.partial`` by its parts, and
  with keywords by identity, too;
* everything else by ``==`` and ``hash``.

A value that cannot be hashed, such as a set, a dict of settings or a plain dataclass, may change in place. Its key is
computed each time from its current content (``content_key``). What a function closes over may change, too; whoever
keeps a key compares that (``closures_in``).
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import functools
import itertools
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

import numpy as np
from jax.tree_util import register_static

from ..errors import StaticValueError
from .named import from_named, to_named

K = TypeVar("K")
V = TypeVar("V")

BY_VALUE = frozenset({int, bool, str, bytes, type(None), type(...)})
_BY_IDENTITY = frozenset({type, BuiltinFunctionType})


class _Identity:
    """A key that compares an object by identity, not by its own ``==``."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return object.__hash__(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


def static_key(value: Any, *, exact: bool = True) -> Any:
    """A hashable key that is equal for values that are equal structure.

    Args:
        exact: whether a function that closes over something is equal only to itself; otherwise, to those that close
            over the same now.

    Raises:
        TypeError: the value, or something inside it, cannot be hashed.

    Example:
        >>> from plait.util.static_values import static_key
        >>> static_key(1) == static_key(True), static_key(optax.adam(1e-3)) == static_key(optax.adam(1e-3))
        (False, True)
    """
    return _key(value, (), exact)


def _key(value: Any, within: tuple[FunctionType, ...], exact: bool) -> Any:
    kind = type(value)
    if kind in BY_VALUE:
        return (kind, value)
    if kind is float:
        return (float, value.hex())
    if kind is complex:
        return (complex, value.real.hex(), value.imag.hex())
    if kind in _BY_IDENTITY or isinstance(value, type):
        return value
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return (kind, *[_key(item, within, exact) for item in value])
    if kind is frozenset:
        return (frozenset, frozenset([_key(item, within, exact) for item in value]))
    if kind is FunctionType:
        return _function_key(value, within, exact)
    if kind is functools.partial:
        keywords = tuple(sorted((name, _key(item, within, exact)) for name, item in value.keywords.items()))
        arguments = tuple([_key(item, within, exact) for item in value.args])
        key = (functools.partial, _key(value.func, within, exact), arguments, keywords)
        return (_Identity(value), key) if exact and keywords else key
    if kind is MethodType:
        return (MethodType, _Identity(value.__self__), _key(value.__func__, within, exact))
    if isinstance(value, np.generic):
        return (kind, value.dtype, value.tobytes())
    hash(value)
    return (kind, value)


def _function_key(function: FunctionType, within: tuple[FunctionType, ...], exact: bool) -> Any:
    """The key of a function.

    ``within`` are the functions whose closures are being processed, outermost first; if one occurs again, its key is
    its position among them.
    """
    if "<locals>" not in function.__qualname__ and function.__closure__ is None:
        return function
    for place, outer in enumerate(within):
        if function is outer:
            return ("recursion", place)
    if _writes_surroundings(function.__code__):
        return function
    within = (*within, function)

    def key(item: Any) -> Any:
        try:
            return _key(item, within, exact)
        except TypeError:
            return _Identity(item)

    contents = contents_of(function)
    found = (FunctionType, function.__code__, _Identity(function.__globals__), tuple(map(key, contents)))
    return (function, found) if exact and contents and not _is_of_a_library(function) else found


# What functions of these close over stays, but for functions of the user's.
_LIBRARIES = frozenset({__name__.partition(".")[0], "jax", "optax", "flax"})


def _is_of_a_library(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).partition(".")[0] in _LIBRARIES


def closures_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """The user's functions that close over something, at any depth in a static value, and the keywords of partials,
    each with a copy of its content. The key of a value is another one if such a content is."""
    stack, seen = [value], set()
    while stack:
        each = stack.pop()
        kind = type(each)
        if kind is functools.partial:
            stack += [each.func, *each.args, *each.keywords.values()]
            yield each.keywords, each.keywords.copy()
        elif isinstance(each, tuple):
            stack += each
        elif kind is FunctionType and each not in seen and not _writes_surroundings(each.__code__):
            seen.add(each)
            contents = contents_of(each)
            stack += contents
            if contents and not _is_of_a_library(each):
                yield each, contents


def closure_contents(function: FunctionType) -> list[Any]:
    """What a function closes over; the cell itself where it has no content yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(cell)
    return found


def contents_of(function: FunctionType) -> list[Any]:
    """All that a function has besides its code: closure, defaults and attributes, these with their names."""
    named = [*(function.__kwdefaults__ or {}).items(), *sorted(function.__dict__.items())]
    return [*closure_contents(function), *(function.__defaults__ or ()), *itertools.chain.from_iterable(named)]


# A cache of the function below, by code object; keeps at most ``maxsize`` code objects alive.
@functools.lru_cache(maxsize=4096)
def _writes_surroundings(code: CodeType) -> bool:
    """Whether a function assigns a ``nonlocal`` name: it then has its own state, and is equal only to itself.

    Its key must not depend on that state; otherwise the first call would change the structure of the model that
    contains it.
    """
    outside = set(code.co_freevars)
    if not outside:
        return False
    writes = ("STORE_DEREF", "DELETE_DEREF")
    if any(step.opname in writes and step.argval in outside for step in dis.get_instructions(code)):
        return True
    return any(
        isinstance(inner, CodeType) and outside & set(inner.co_freevars) and _writes_surroundings(inner)
        for inner in code.co_consts
    )


class _Copy:
    """The key of a value with ``==`` but without a hash: a copy from the time when the key was computed."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Any) -> None:
        self.kind = type(value)
        self.value = copy.deepcopy(value)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, _Copy) and self.kind is other.kind and (self.value == other.value) is True
        except Exception:  # classes that cannot be compared raise anything
            return False


def content_key(value: Any) -> Any:
    """A hashable key that is equal for static values that are equal now, even if they cannot be hashed.

    Containers and dataclasses are compared by their content, other values without a hash by a copy and ``==``, and
    values that cannot be copied by identity.

    Example:
        >>> from plait.util.static_values import content_key
        >>> content_key({"q", "v"}) == content_key({"v", "q"}), content_key([1]) == content_key([True])
        (True, False)
    """
    try:
        return static_key(value)
    except TypeError:
        pass
    kind = type(value)
    if isinstance(value, (list, tuple)):
        return (kind, *map(content_key, value))
    if isinstance(value, (set, frozenset)):
        return (kind, frozenset(map(content_key, value)))
    if isinstance(value, dict):
        return (kind, frozenset((content_key(key), content_key(item)) for key, item in value.items()))
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (kind, value.dtype, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value) and kind.__eq__ is not object.__eq__:
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        return (kind, *((name, content_key(getattr(value, name, None))) for name in names))
    try:
        copied = _Copy(value)
        return copied if copied == _Copy(value) else _Identity(value)
    except Exception:  # classes that cannot be copied raise anything
        return _Identity(value)


def same_static(first: Any, second: Any, *, exact: bool = True) -> bool:
    """Whether two values are equal structure; values that cannot be hashed are compared with ``==``.

    Args:
        exact: as for ``static_key``.

    Example:
        >>> from plait.util.static_values import same_static
        >>> same_static(float("nan"), float("nan")), same_static(0.0, -0.0), same_static([1], [1])
        (True, False, True)
    """
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    try:
        return _key(first, (), exact) == _key(second, (), exact)
    except TypeError:
        pass
    try:
        return (first == second) is True
    except Exception:
        return False


@register_static
class HashableMapping(Mapping[K, V], Generic[K, V]):
    """An immutable mapping that compares by content and hashes independently of order.

    Values are compared by the rules of this file. If a value cannot be hashed, hashing the mapping raises
    ``StaticValueError``, which names the key.

    Example:
        >>> from plait.graph import HashableMapping
        >>> HashableMapping({"a": 1, "b": 2}) == HashableMapping({"b": 2, "a": 1})
        True
    """

    __slots__ = ("_hash", "_items", "_key")

    def __init__(self, mapping: Mapping[K, V] | Any = (), copy: bool = True) -> None:
        self._items = dict(mapping) if copy else mapping
        self._key: Any = None
        self._hash: int | None = None

    def key(self) -> Any:
        """The hashable content."""
        if self._key is None:
            pairs = []
            for name, value in self._items.items():
                try:
                    pairs.append((name, static_key(value)))
                except TypeError as error:
                    raise StaticValueError(
                        "a static value cannot be hashed",
                        at=str(name),
                        found=f"{type(value).__name__}: {error}",
                        expected="a value with both == and hash, such as a frozen dataclass or a tuple",
                        do="make the value hashable, such as a tuple instead of a list, or keep it out of the graph",
                    ) from error
            self._key = frozenset(pairs)
        return self._key

    def __reduce__(self) -> Any:  # without the hash, which is valid only in this process
        return _unpickled, (type(self), to_named(self._items))

    def __getitem__(self, name: K) -> V:
        return self._items[name]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    # Those of the dict underneath are faster than those of the abstract class.

    def keys(self) -> KeysView[K]:
        return self._items.keys()

    def items(self) -> ItemsView[K, V]:
        return self._items.items()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key())
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, HashableMapping):  # a dict has no hash that could match this one
            return NotImplemented
        if self._items.keys() != other.keys():
            return False
        return all(same_static(value, other[name]) for name, value in self._items.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._items!r})"


def _unpickled(cls: type[HashableMapping[Any, Any]], items: dict[Any, Any]) -> HashableMapping[Any, Any]:
    return cls(from_named(items))
