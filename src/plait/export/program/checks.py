"""Common checks with their errors: known names, unique names, non-empty collections, equal structures."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import jax

from ...errors import ArgumentError, ArgumentTypeError, PlaitError
from ...util.words import describe_type, name_of_class


def check_known(
    message: str,
    names: Iterable[Any],
    known: Iterable[Any],
    do: str,
    *,
    at: str | None = None,
    kind: type[PlaitError] = ArgumentError,
) -> None:
    """Raise for unknown names.

    Raises:
        ArgumentError: or the given error type; lists them and the known names.
    """
    known = list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(map(repr, known)) or "none"
        raise kind(message, at=at, found=", ".join(map(repr, unknown)), expected=f"some of {listed}", do=do)


def check_different(
    message: str, names: Iterable[tuple[Any, str]], do: str, kind: type[PlaitError] = ArgumentError
) -> None:
    """Raise for a duplicate name; ``names`` are pairs of owner and name.

    Raises:
        ArgumentError: or the given error type; has the name and both owners.
    """
    owners: dict[str, Any] = {}
    for owner, name in names:
        if name in owners:
            found = f"{name!r}, of {owners[name]} and of {owner}"
            raise kind(message, at=name, found=found, expected="different names", do=do)
        owners[name] = owner


def check_some(message: str, argument: str, given: Collection[Any], do: str, *, at: str | None = None) -> None:
    """Raise for an empty collection.

    Raises:
        ArgumentError: it is empty.
    """
    if not given:
        raise ArgumentError(message, at=at, found=f"{argument}={given!r}", expected="at least one", do=do)


def check_type(
    message: str,
    value: Any,
    types: Any,
    expected: str,
    do: str,
    *,
    at: str | None = None,
    kind: type[PlaitError] = ArgumentTypeError,
) -> None:
    """Raise for a value that is not an instance of ``types``; ``expected`` describes them.

    Raises:
        ArgumentTypeError: or the given error type; has the type of the value.
    """
    if not isinstance(value, types):
        raise kind(message, at=at, found=describe_type(value), expected=expected, do=do)


def check_equal(message: str, found: Any, expected: Any, do: str, *, at: str | None = None) -> None:
    """Raise if two structures, or two shapes and dtypes, differ.

    Raises:
        ArgumentError: has both.
    """
    if found != expected:
        raise ArgumentError(message, at=at, found=str(found), expected=str(expected), do=do)


def leaves_like(params_def: Any, argument: str, tree: Any, kinds: tuple[type, ...], do: str) -> list[Any]:
    """The leaves of an argument that has one leaf of the given types for each parameter.

    Raises:
        ArgumentError: its structure is not that of the parameters.
        ArgumentTypeError: it has a leaf of another type.
    """
    try:
        leaves = params_def.flatten_up_to(tree)
    except ValueError as error:
        found = str(jax.tree_util.tree_structure(tree))
        message = f"the structures of {argument} and params differ"
        raise ArgumentError(message, found=found, expected=str(params_def), do=do) from error
    wrong = [leaf for leaf in leaves if not isinstance(leaf, kinds)]
    if wrong:
        expected = f"{name_of_class(kinds[0])} for each parameter"
        message = f"{argument} has a leaf of another type"
        raise ArgumentTypeError(message, found=f"{wrong[0]!r:.200}", expected=expected, do=do)
    return leaves
