"""Filters: selecting leaves of a graph.

A filter literal is turned into a predicate ``(path, value) -> bool``: a type, a tag, ``...``, a bool, ``None``, a
callable, a list or tuple (any of them), or one of the classes here. With several filters, a leaf goes to the first that
matches. Filter objects compare by content, so they can be static values of a graph.

A variable of a ``Stack`` holds many layers. A filter is called with the path of each of them, ``blocks.3.kernel``, and
must return the same result for all.
"""

# Rule ST4.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import cast

from ...errors import FilterError, FilterTypeError
from ...typing import FilterLiteral, Value
from ...util.paths import Path, has_layers, result_for_layers
from ...util.words import describe_filter

Predicate = Callable[[Path, Value], bool]


def to_predicate(filter: FilterLiteral) -> Predicate:
    """The predicate of a filter literal.

    Args:
        filter: a type (``isinstance``), a string (tag), ``...`` or ``True`` (everything), ``None`` or ``False``
            (nothing), a list or tuple (any of them), or a callable ``(path, value) -> bool``.

    Raises:
        FilterTypeError: the object is none of these, or is a Flax class.

    Example:
        >>> from plait.filterlib import to_predicate
        >>> to_predicate(plait.Param)(("kernel",), plait.Param(1.0))
        True
    """
    if filter is ... or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, type):
        _check_not_of_flax(filter)
        return OfType(filter)
    if isinstance(filter, (list, tuple)):
        return Any_(*filter)
    if isinstance(filter, _BY_PATH) or getattr(filter, "asks_of_layers", False):
        return cast("Predicate", filter)
    if callable(filter):
        return OfLayers(cast("Predicate", filter))
    raise FilterTypeError(
        "this object cannot be used as a filter",
        found=f"{filter!r} of type {type(filter).__name__}",
        expected="a type, a tag, ..., a bool, None, a callable (path, value) -> bool, or a list of these",
        do="pass, for example, plait.Param, plait.PathContains('kernel'), plait.Not(plait.BatchStat)",
    )


def _check_not_of_flax(kind: type) -> None:
    """Raise for ``flax.nnx.Param`` and other Flax classes: no plait variable is an instance, so they would select
    nothing."""
    if kind.__module__.startswith("flax.nnx"):
        raise FilterTypeError(
            "a Flax class selects nothing in a plait model",
            found=f"{kind.__module__}.{kind.__qualname__}",
            expected=f"a plait class, such as plait.{kind.__name__}",
            do="import plait instead of flax.nnx, or start the program with: python -m plait.as_flax program.py",
        )


@dataclasses.dataclass(frozen=True)
class Everything:
    """Matches every leaf; short forms are ``...`` and ``True``.

    Example:
        >>> plait.Everything() == plait.filterlib.to_predicate(...)
        True
    """

    def __call__(self, path: Path, x: Value) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Nothing:
    """Matches no leaf; short forms are ``None`` and ``False``.

    Example:
        >>> plait.Nothing()((), plait.Param(1.0))
        False
    """

    def __call__(self, path: Path, x: Value) -> bool:
        return False


def first_matches(predicates: Sequence[Predicate], leaves: Iterable[tuple[Path, Value]]) -> list[int | None]:
    """For each leaf, given with its path, the number of the first predicate that matches it."""
    return [next((n for n, matches in enumerate(predicates) if matches(path, leaf)), None) for path, leaf in leaves]


@dataclasses.dataclass(frozen=True)
class OfType:
    """Matches instances of ``type`` and its subclasses; the short form is the type itself.

    Example:
        >>> plait.OfType(plait.Param)((), plait.LoRAParam(1.0))
        True
    """

    type: type

    def __call__(self, path: Path, x: Value) -> bool:
        return isinstance(x, self.type)

    def __repr__(self) -> str:
        return f"OfType({self.type.__name__})"


@dataclasses.dataclass(frozen=True)
class WithTag:
    """Matches variables whose ``tag`` metadata equals ``tag``; the short form is the string.

    Example:
        >>> plait.WithTag("dropout")((), plait.Variable(0, tag="dropout"))
        True
    """

    tag: str

    def __call__(self, path: Path, x: Value) -> bool:
        tag = getattr(x, "tag", None)
        return isinstance(tag, str) and tag == self.tag

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True)
class PathContains:
    """Matches leaves whose path contains ``key``.

    Args:
        key: the key to look for.
        exact: ``False`` also matches if ``key`` is a substring of some key of the path.

    Example:
        >>> path = ("layers", 3, "kernel")
        >>> plait.PathContains(3)(path, None), plait.PathContains("ker", exact=False)(path, None)
        (True, True)
    """

    key: Hashable
    exact: bool = True

    def __call__(self, path: Path, x: Value) -> bool:
        return result_for_layers(self._matches, path, x, self)

    def _matches(self, path: Path, value: Value) -> bool:
        if self.exact:
            return self.key in path
        return any(str(self.key) in str(part) for part in path)

    def __repr__(self) -> str:
        return f"PathContains({self.key!r})" if self.exact else f"PathContains({self.key!r}, exact=False)"


@dataclasses.dataclass(frozen=True, init=False)
class PathIn:
    """Matches the leaves at exactly these paths.

    Example:
        >>> plait.filterlib.PathIn(("head", "bias"))(("head", "bias"), None)
        True
    """

    paths: frozenset[Path]

    def __init__(self, *paths: Path) -> None:
        object.__setattr__(self, "paths", frozenset(tuple(path) for path in paths))

    def __call__(self, path: Path, x: Value) -> bool:
        return self._matches(path, x) or (has_layers(path) and result_for_layers(self._matches, path, x, self))

    def _matches(self, path: Path, value: Value) -> bool:
        return path in self.paths

    def __repr__(self) -> str:
        return f"PathIn({', '.join(sorted(map(repr, self.paths)))})"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class _Combination:
    """Several filters, combined by a logical operation."""

    predicates: tuple[Predicate, ...]

    def __init__(self, *filters: FilterLiteral) -> None:
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))

    def __call__(self, path: Path, x: Value) -> bool:
        return result_for_layers(self._matches, path, x, self)

    def _matches(self, path: Path, value: Value) -> bool:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__.rstrip('_')}({', '.join(map(repr, self.predicates))})"


class Any_(_Combination):
    """Matches leaves that any of the filters matches; the short form is a list or tuple.

    Example:
        >>> plait.Any(plait.Param, plait.BatchStat)((), plait.BatchStat(0.0))
        True
    """

    def _matches(self, path: Path, value: Value) -> bool:
        return any(predicate(path, value) for predicate in self.predicates)


class All(_Combination):
    """Matches leaves that all of the filters match.

    Example:
        >>> plait.All(plait.Param, plait.PathContains("head"))(("head", "bias"), plait.Param(0.0))
        True
    """

    def _matches(self, path: Path, value: Value) -> bool:
        return all(predicate(path, value) for predicate in self.predicates)


class Not(_Combination):
    """Matches leaves that the filter does not match.

    Example:
        >>> plait.Not(plait.Param)((), plait.BatchStat(0.0))
        True
    """

    def __init__(self, filter: FilterLiteral, /) -> None:
        super().__init__(filter)

    def _matches(self, path: Path, value: Value) -> bool:
        return not self.predicates[0](path, value)


@dataclasses.dataclass(frozen=True)
class OfLayers:
    """A user's predicate, called with the path of each layer of a stack.

    Attributes:
        predicate: ``(path, value) -> bool``.
    """

    predicate: Predicate

    def __call__(self, path: Path, x: Value) -> bool:
        return result_for_layers(self.predicate, path, x, self.predicate)

    def __repr__(self) -> str:
        return repr(self.predicate)


_BY_PATH = (Everything, Nothing, OfType, WithTag, PathContains, PathIn, _Combination, OfLayers)
Any_.__name__ = "Any"  # pickle finds the class by its __qualname__


def resolve_filters(filters: Sequence[FilterLiteral]) -> list[Predicate]:
    """The predicates of several filters, which are tried in order.

    Raises:
        FilterError: a catch-all (``...`` or ``True``) comes before another filter, which could then never match.
    """
    for index, filter in enumerate(filters):
        if filter is ... or filter is True:
            rest = filters[index + 1 :]
            if any(not (later is ... or later is True) for later in rest):
                raise FilterError(
                    "`...` or `True` can only be used as the last filters: one that matches everything must come last",
                    at=f"filter {index} of {len(filters)}",
                    found=f"{describe_filter(filter)} before {describe_filter(rest[0])}",
                    expected="`...` or `True` only at the end",
                    do="move it to the end",
                )
    return [to_predicate(filter) for filter in filters]


__dir__ = "All Any_ Everything Not Nothing OfType PathContains PathIn WithTag to_predicate".split
