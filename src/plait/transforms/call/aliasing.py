"""One variable, one treatment: the check that no variable is reached under two prefixes. (rules X3, U25)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.graph.flatten import Walk, path_of
from ...core.objects.variables import Variable
from ...errors import SharingError
from .names import joined
from .prefixes import choose


class Treatment(NamedTuple):
    """A root, what to call it, and the prefix that it is treated by."""

    label: str
    root: Any
    prefix: Any


def check_aliasing(name: str, treatments: Sequence[Treatment], known: dict[int, tuple[Any, str]]) -> None:
    """Refuse a variable that is reached under two different prefixes.

    Args:
        name: the transform, for errors.
        treatments: the roots.
        known: id of a variable → (its prefix value, where that comes from); added to.

    Raises:
        SharingError: names the variable, both places and both prefixes.
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
                raise SharingError(
                    f"Inconsistent aliasing detected: {name} reaches one variable under two prefixes",
                    at=f"{first} and {place} (the same {type(leaf).__name__})",
                    found=f"{_shown(before)} at the first, {_shown(value)} at the second",
                    expected="one prefix for a variable, however many ways lead to it",
                    do="give both the same prefix, or pass the variable in one place only",
                )


def _shown(prefix: Any) -> str:
    return prefix.__name__ if isinstance(prefix, type) else repr(prefix)
