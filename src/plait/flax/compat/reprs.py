"""Text of nested objects, each described by a generator: the part of ``nnx.reprlib`` that packages use."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...util.repr import repr_fields


class Object(NamedTuple):
    """How an object as a whole is shown: its type, and the text before and after its entries and their values."""

    type: Any
    start: str = "("
    end: str = ")"
    kv_sep: str = "="
    comment: str = ""


class Attr(NamedTuple):
    """An entry of an object: its name, and any value."""

    key: str
    value: Any


class Representable:
    """Base of classes whose ``repr`` is defined by ``__nnx_repr__``, which yields an ``Object``, and an ``Attr`` each.

    Example:
        >>> from plait.flax.compat.reprs import Attr, Object, Representable
        >>> class Point(Representable):
        ...     def __nnx_repr__(self):
        ...         yield Object(type(self))
        ...         yield Attr("x", 1)
        >>> Point()
        Point(x=1)
    """

    def __repr__(self) -> str:
        whole, *entries = self.__nnx_repr__()  # type: ignore[attr-defined]
        name = whole.type if isinstance(whole.type, str) else whole.type.__name__
        options = {"separator": whole.kv_sep, "brackets": whole.start + whole.end, "comment": whole.comment}
        return repr_fields(name, entries, **options)
