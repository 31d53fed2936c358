"""Aliasing: the check that no variable has two different prefixes. (rules X3, U25)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.graph.flatten import Walk, path_of
from ...core.objects.variables import Variable
from ...errors import SharingError
from .names import joined
from .prefixes import choose, shown_prefix


class Treatment(NamedTuple):
    """A root, its name in errors, and its prefix."""

    label: str
    root: Any
    prefix: Any


def check_aliasing(name: str, treatments: Sequence[Treatment], known: dict[int, tuple[Any, str]]) -> None:
    """Raise if a variable has two different prefixes.

    Args:
        name: the transform, for errors.
        treatments: the roots.
        known: id of a variable → (its prefix value, the path of that prefix); extended by the call.

    Raises:
        SharingError: names the variable, both paths and both prefixes.
    """
    for label, root, prefix in treatments:
        walk = Walk()
        walk.add(root)
        for leaf, link in zip(walk.leaves, walk.links, strict=True):
            if not isinstance(leaf, Variable):
                continue
            path = path_of(link)
            value = choose(prefix, path, leaf, label)
            place = joined(label, path)
            before, first = known.setdefault(id(leaf), (value, place))
            if before != value:
                raise aliasing_error(name, type(leaf), (first, place), (before, value))


def aliasing_error(name: str, kind: type, places: tuple[str, str], values: tuple[Any, Any]) -> SharingError:
    """The error for a variable of this class with different prefix values at two places."""
    return SharingError(
        f"Inconsistent aliasing detected: {name} was given one variable with two different prefixes",
        at=f"{places[0]} and {places[1]} (the same {kind.__name__})",
        found=f"{shown_prefix(values[0])} at the first, {shown_prefix(values[1])} at the second",
        expected="one prefix per variable, no matter how many paths lead to it",
        do="use the same prefix for both, or pass the variable only once",
    )
