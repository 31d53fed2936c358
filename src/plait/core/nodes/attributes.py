"""The status of attributes: data (part of the state) or static (part of the structure).

A mark (``plait.data(v)``, ``plait.static(v)``, a class-level declaration) takes precedence; otherwise the value
decides: arrays, variables, modules and registered data types are data, and everything else is static. A plain container
is data as long as it contains data. (rules G58 to G62)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import jax

from ...errors import ArgumentTypeError, AttributeStatusError, GraphError
from ...typing import Value
from ...util.paths import Path, format_path
from ...util.sentinels import NOTHING
from ...util.words import describe_type
from .nodes import _KINDS, DATA_TYPES, Kind, is_bound, kind_of, pytree_impl, unwrapped

T = TypeVar("T")

DATA = "data"
STATIC = "static"
_ANNOTATED = re.compile(r"(?:^|\.)(Data|Static)\[")

Data = Annotated[T, DATA]
Static = Annotated[T, STATIC]


class Mark:
    """The result of ``data`` and ``static``: a status, with the value or the options of a dataclass field."""

    __slots__ = ("options", "status", "value")

    def __init__(self, status: str, value: Value, options: dict[str, Any]) -> None:
        self.status = status
        self.value = value
        self.options = options

    def __repr__(self) -> str:
        return f"{self.status}({'' if self.value is NOTHING else repr(self.value)})"


def data(value: Value = NOTHING, /, **options: Any) -> Any:
    """Mark a value, or a class-level field, as data.

    Args:
        value: the value to assign.
        **options: for a field of ``plait.dataclass``: the keywords of ``dataclasses.field``.

    Raises:
        ArgumentTypeError: both a value and options were given.

    Example:
        >>> class Scaled(plait.Module):
        ...     def __init__(self):
        ...         self.factor = plait.data(2.0)
        >>> plait.state(Scaled())["factor"]
        2.0
    """
    return _mark(DATA, value, options)


def static(value: Value = NOTHING, /, **options: Any) -> Any:
    """Mark a value, or a class-level field, as static: part of the structure, compared and hashed under ``jit``.

    Args:
        value: the value to assign, without arrays, variables or modules.
        **options: for a field of ``plait.dataclass``: the keywords of ``dataclasses.field``.

    Raises:
        ArgumentTypeError: both a value and options were given.

    Example:
        >>> class Scaled(plait.Module):
        ...     sizes: tuple = plait.static()
        ...     def __init__(self):
        ...         self.sizes, self.name = (2, 3), plait.static("scaled")
        >>> len(plait.state(Scaled()))
        0
    """
    return _mark(STATIC, value, options)


def _mark(status: str, value: Value, options: dict[str, Any]) -> Mark:
    if value is not NOTHING and options:
        raise ArgumentTypeError(
            f"{status}() takes a value or field options, not both",
            found=f"the value {value!r:.60} and the options {sorted(options)}",
            expected=f"{status}(value), or {status}(default=..., ...) at class level",
            do=f"in the class body, give the value as default: plait.{status}(default=value)",
        )
    return Mark(status, value, options)


def register_data_type(type: type[T], /) -> type[T]:
    """Treat instances of a class as data wherever they are assigned. Usable as a decorator.

    Example:
        >>> @plait.register_data_type
        ... class Handle:
        ...     pass
        >>> plait.is_data(Handle())
        True
    """
    DATA_TYPES.add(type)
    _KINDS.pop(type, None)
    return type


def is_data(value: Value, /) -> bool:
    """Whether a value is data by itself: an array, reference, variable, graph node or registered data type.

    Example:
        >>> plait.is_data(jnp.zeros(2)), plait.is_data(plait.Param(1.0)), plait.is_data(2.0), plait.is_data([])
        (True, True, False, False)
    """
    if isinstance(value, Mark):
        return value.status == DATA
    kind = kind_of(value)
    return (kind is not Kind.STATIC and kind is not Kind.PYTREE) or type(value) in DATA_TYPES


def iter_data(value: Value, path: Path = (), above: tuple[int, ...] = ()) -> Iterator[tuple[Path, Value]]:
    """The data in a value, which may be a container, with paths; ``above`` are the ids of the containers it is in.

    Raises:
        GraphError: a plain container contains itself.
    """
    kind = kind_of(value)
    if kind is Kind.PYTREE:
        if id(value) in above:
            raise contains_itself(value, format_path(path))
        for key, child in pytree_impl(type(value)).flatten(value)[0]:
            yield from iter_data(unwrapped(child), (*path, key), (*above, id(value)))
    elif kind is not Kind.STATIC:
        yield path, value


def has_data(value: Value, /) -> list[Value]:
    """The data in a value: the value itself, or everything at any depth of a container; empty, so false, if there is
    none.

    Example:
        >>> plait.has_data([1, {"w": plait.Param(2.0)}]), plait.has_data([1, 2])
        ([Param(value=2.0)], [])
    """
    return [item for _, item in iter_data(value)]


def holds_data(value: Value, path: Path = ()) -> bool:
    """Whether a value contains any data."""
    return next(iter_data(value, path), None) is not None


def declared_statuses(cls: type) -> dict[str, str]:
    """Statuses that a class body declares: ``x = plait.data()``, ``x: plait.Data[T]``; also those of its bases."""
    declared: dict[str, str] = {}
    for base in reversed(cls.__mro__[1:]):
        declared.update(base.__dict__.get("_pytree__declared", {}))
    for name, annotation in inspect.get_annotations(cls).items():
        if isinstance(annotation, str):
            notes = [status.lower() for status in _ANNOTATED.findall(annotation)[:1]]
        else:
            notes = getattr(annotation, "__metadata__", ())
        declared.update((name, note) for note in notes if note in (DATA, STATIC))
    for name, value in cls.__dict__.items():
        if isinstance(value, Mark):
            declared[name] = value.status
    return declared


def is_only_abstract(value: Value) -> bool:
    """Whether all data in a value are shapes and dtypes, which are static where a program assigns them, and data where
    they stand for the arrays of an abstract model."""
    if type(value) is not jax.ShapeDtypeStruct and type(value) not in (list, tuple, dict):
        return False
    kinds = (type(item) for _, item in iter_data(value))
    return next(kinds, None) is jax.ShapeDtypeStruct and all(kind is jax.ShapeDtypeStruct for kind in kinds)


def check_static(value: Value, name: str, owner: type) -> None:
    """Raise if a static attribute contains data.

    Raises:
        AttributeStatusError: names the attribute, the class, and what was found.
    """
    if is_bound(value):
        return
    found = next((each for each in iter_data(value, (name,)) if type(each[1]) is not jax.ShapeDtypeStruct), None)
    if found is not None:
        path, item = found
        raise AttributeStatusError(
            "Found data under an attribute marked static",
            at=f"{owner.__name__}.{format_path(path)}",
            found=describe_type(item),
            expected="numbers, strings, functions and other values without arrays, variables or modules",
            do=f"remove the mark, or mark it as data: self.{name} = plait.data({name})",
        )


def contains_itself(value: Value, at: str) -> GraphError:
    """The error for a plain container in a cycle. Such containers have no identity, so a walk through it never ends."""
    return GraphError(
        "a plain container contains itself",
        at=at,
        found=f"the {type(value).__name__} that it is in",
        expected="plain containers without cycles; modules, plait.List and plait.Dict may refer to each other",
        do="use a container that is an object: self.items = plait.List([...])",
    )


def check_no_marks_inside(value: Value, name: str, owner: type, above: tuple[object, ...] = ()) -> None:
    """Raise if a plain list, tuple or dict contains marks, or itself.

    Args:
        above: the containers that it is in.

    Raises:
        AttributeStatusError: names the attribute and the class.
        GraphError: the same.
    """
    if any(value is each for each in above):
        raise contains_itself(value, f"{owner.__name__}.{name}")
    for item in value.values() if isinstance(value, dict) else value:
        kind = type(item)
        if kind is Mark:
            raise AttributeStatusError(
                f"plait.{item.status}() was used inside a container",
                at=f"{owner.__name__}.{name}",
                found=f"{item!r:.60} inside {describe_type(value)}",
                expected="marks on whole attributes only",
                do="remove the marks from the elements; containers of modules and arrays need none, mark others "
                f"as a whole: self.{name} = plait.{item.status}({name})",
            )
        if kind is list or kind is tuple or kind is dict:
            check_no_marks_inside(item, name, owner, (*above, value))
