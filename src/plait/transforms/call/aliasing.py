"""Aliasing: the checks that no variable has two different prefixes, and that no layer of a stack is given twice.

(rules X3, U25, ST3)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core.graph.flatten import Walk, path_of
from ...core.graph.walks import CachedWalk
from ...core.objects.variables import Variable
from ...core.tools.stacking import SliceCell, origin_of
from ...errors import SharingError
from ...paths import Path, layers_of
from .names import joined
from .prefixes import choose


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
                raise SharingError(
                    f"Inconsistent aliasing detected: {name} was given one variable with two different prefixes",
                    at=f"{first} and {place} (the same {type(leaf).__name__})",
                    found=f"{_shown(before)} at the first, {_shown(value)} at the second",
                    expected="one prefix per variable, no matter how many paths lead to it",
                    do="use the same prefix for both, or pass the variable only once",
                )


def _shown(prefix: Any) -> str:
    return prefix.__name__ if isinstance(prefix, type) else repr(prefix)


def check_views(walk: CachedWalk, labels: Callable[[], Sequence[str]]) -> None:
    """Raise if a layer of a stack is in the walk twice: in its stack and in a view, or in two views.

    A transform would treat them as separate variables, so writes and gradients of one of them would be lost. A cached
    walk is checked once.

    Args:
        labels: returns the name of each root.

    Raises:
        SharingError: names both paths.
    """
    if walk in _checked:
        return
    if any(type(cell) is SliceCell for cell in walk.cells):
        origins = [origin_of(cell) for cell in walk.cells]
        found = _met_twice(origins)
        if found is not None:
            raise _given_twice(walk, labels(), *found, origins)
    _checked.add(walk)


_checked: weakref.WeakSet[CachedWalk] = weakref.WeakSet()


def _met_twice(origins: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[int, int] | None:
    """The positions of two values of which one is in the other: a stacked one and its slice, or equal slices."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    for position, (cell, indices) in enumerate(origins):
        first = known.setdefault((id(cell), indices), position)
        if indices and first != position:
            return first, position
    for position, (cell, indices) in enumerate(origins):
        for depth in range(len(indices)):
            whole = known.get((id(cell), indices[:depth]))
            if whole is not None:
                return whole, position
    return None


def _given_twice(
    walk: CachedWalk, labels: Sequence[str], first: int, view: int, origins: Sequence[tuple[Any, tuple[int, ...]]]
) -> SharingError:
    roots = [number for number, count in enumerate(walk.counts) for _ in range(count)]
    paths, inner = walk.paths(), origins[view][1][len(origins[first][1]) :]
    places = [joined(labels[roots[first]], _in_layer(paths[first], inner)), joined(labels[roots[view]], paths[view])]
    if not inner:
        do = "index the stack once, block = model.blocks[1], and use this one view in all places"
    elif roots[first] == roots[view]:
        do = "do not store a view in the model: write self.blocks[1] where it is needed"
    else:
        do = (
            "pass the model alone, and use model.blocks[1] inside the function; what is only read can be passed as a "
            "copy, plait.clone(model.blocks[1])"
        )
    return SharingError(
        "a layer of a stack was given twice",
        at=f"{places[0]} and {places[1]} (the same {walk.types[view].__name__})",  # type: ignore[union-attr]
        found="a stack and a view of one of its layers" if inner else "two views of one layer",
        expected="each layer once, since a transform takes a view as a block of its own",
        do=do,
    )


def _in_layer(path: Path, indices: Sequence[int]) -> Path:
    """The path of a stacked value in one layer, given its place in each stack."""
    places = iter(indices)
    named = []
    for key in path:
        layers = layers_of(key)
        place = None if layers is None else next(places, None)
        named.append(key if layers is None or place is None else layers[place])
    return tuple(named)
