"""Checks that repeat, each with its error: names that are known, names that differ, something rather than nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ...errors import ArgumentError, PlaitError


def check_known(message: str, names: Iterable[Any], known: Iterable[Any], do: str, *, at: str | None = None) -> None:
    """Refuse names that are not among those that are known.

    Raises:
        ArgumentError: it has them, and what is known.
    """
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(map(repr, known)) or "none"
        raise ArgumentError(message, at=at, found=", ".join(map(repr, unknown)), expected=f"some of {listed}", do=do)


def check_different(
    message: str, names: Iterable[tuple[Any, str]], do: str, kind: type[PlaitError] = ArgumentError
) -> None:
    """Refuse a name that two have; ``names`` are pairs of who has one, and the name.

    Raises:
        ArgumentError: or an error of another kind; it has the name and both.
    """
    owners: dict[str, Any] = {}
    for owner, name in names:
        if name in owners:
            found = f"{name!r}, of {owners[name]} and of {owner}"
            raise kind(message, at=name, found=found, expected="names that differ", do=do)
        owners[name] = owner


def check_some(message: str, argument: str, given: Collection[Any], do: str, *, at: str | None = None) -> None:
    """Refuse an argument that is an empty collection.

    Raises:
        ArgumentError: it is empty.
    """
    if not given:
        raise ArgumentError(message, at=at, found=f"{argument}={given!r}", expected="at least one", do=do)


def check_structure(message: str, found: Any, expected: Any, do: str) -> None:
    """Refuse a structure that is not the expected one.

    Raises:
        ArgumentError: it has both.
    """
    if found != expected:
        raise ArgumentError(message, found=str(found), expected=str(expected), do=do)
