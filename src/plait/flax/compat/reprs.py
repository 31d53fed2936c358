"""Text of nested objects, each described by a generator: ``nnx.reprlib``.

A class derives from ``Representable`` and yields, from ``__nnx_repr__``, one ``Object``, then an ``Attr`` for each of
its entries. Each entry is on a line of its own, indented by its depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Object:
    """How an object as a whole is shown.

    Args:
        type: its name, or the class that has the name.
        start: text before the entries.
        end: text after the entries.
        kv_sep: text between the key and the value of an entry.
        indent: text before an entry.
        empty_repr: text between ``start`` and ``end`` if there are no entries.
        comment: text after ``start``.
        same_line: whether all entries are on one line.
    """

    type: str | type
    start: str = "("
    end: str = ")"
    kv_sep: str = "="
    indent: str = "  "
    empty_repr: str = ""
    comment: str = ""
    same_line: bool = False


@dataclasses.dataclass(frozen=True)
class Attr:
    """One entry.

    Args:
        key: its name; empty for an entry without one.
        value: any object; shown by its ``repr``.
        start: text before the entry.
        end: text after the entry.
        use_raw_value: show a text itself, not its ``repr``.
        use_raw_key: the key is already formatted; without colours it has no effect.
    """

    key: str
    value: Any
    start: str = ""
    end: str = ""
    use_raw_value: bool = False
    use_raw_key: bool = False


class Representable:
    """Base of classes whose ``repr`` is defined by ``__nnx_repr__``.

    Example:
        >>> from plait.compat import reprs
        >>> class Point(reprs.Representable):
        ...     def __nnx_repr__(self):
        ...         yield reprs.Object(type(self), same_line=True)
        ...         yield reprs.Attr("x", 1)
        >>> Point()
        Point(x=1)
    """

    __slots__ = ()

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        """The object, then its entries."""
        raise NotImplementedError(f"{type(self).__name__} does not define __nnx_repr__")

    def __repr__(self) -> str:
        return get_repr(self)


def get_repr(obj: Representable) -> str:
    """The text of what ``obj.__nnx_repr__()`` yields."""
    whole, *entries = obj.__nnx_repr__()
    assert isinstance(whole, Object)
    name = whole.type if isinstance(whole.type, str) else whole.type.__name__
    shown = [_entry(entry, whole) for entry in entries if isinstance(entry, Attr)]
    if not shown:
        return f"{name}{whole.start}{whole.empty_repr}{whole.end}"
    if whole.same_line:
        return f"{name}{whole.start}{whole.comment}{', '.join(shown)}{whole.end}"
    lines = ",\n".join(text.replace("\n", f"\n{whole.indent}").join((whole.indent, "")) for text in shown)
    return f"{name}{whole.start}{whole.comment}\n{lines}\n{whole.end}"


def _entry(entry: Attr, whole: Object) -> str:
    is_ready = entry.use_raw_value and isinstance(entry.value, str)
    value = entry.value if is_ready else repr(entry.value)
    return f"{entry.start}{entry.key}{whole.kv_sep if entry.key else ''}{value}{entry.end}"


class MappingReprMixin(Representable):
    """Shows a mapping as ``Name({...})``."""

    __slots__ = ()

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        yield Object(type(self), start="({", end="})", kv_sep=": ")
        for key, value in self.items():  # type: ignore[attr-defined]
            yield Attr(repr(key), value, use_raw_key=True)


class SequenceReprMixin(Representable):
    """Shows a sequence as ``Name([...])``."""

    __slots__ = ()

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        yield Object(type(self), start="([", end="])")
        for value in self:  # type: ignore[attr-defined]
            yield Attr("", value)


@dataclasses.dataclass(repr=False)
class PrettyMapping(MappingReprMixin):
    """A mapping, shown with one entry per line."""

    mapping: Mapping[Any, Any]

    def items(self) -> Any:
        """The entries of the mapping."""
        return self.mapping.items()


@dataclasses.dataclass(repr=False)
class PrettySequence(SequenceReprMixin):
    """A sequence, shown with one entry per line."""

    sequence: Sequence[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sequence)
