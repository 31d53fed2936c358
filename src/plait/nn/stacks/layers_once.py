"""The check that a graph holds no layer of a stack twice: in the stack and in a view of it, or in two views.

A walk takes a view for a block of its own, so a state, a copy or a checkpoint would hold its values twice, and what is
written to one of the two would be lost. A list of blocks has one object in both places. Walks have the variables that
they found checked, and ``visit`` before it starts; neither does anything in a program without views. (rule ST17)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core.graph.walks import Walk, path_of
from ...core.nodes.nodes import Kind, places
from ...core.variables.variables import Variable
from ...errors import SharingError
from ...util.paths import Path, format_path, layers_of
from .layer_cells import origin_of, views_exist


class Found(NamedTuple):
    """A variable, and where it was found.

    Attributes:
        root: the number of the root.
        path: computes the path from there; ``None`` if it is not known.
    """

    variable: Variable[Any]
    root: int
    path: Callable[[], Path] | None


class LayersOnce:
    """The variables found so far.

    Args:
        names: returns the names of the roots, for the error.
    """

    __slots__ = ("_inside", "_known", "_names", "checked")

    def __init__(self, names: Callable[[], Sequence[str]] | None = None) -> None:
        self._names = names
        self.checked = 0  # how many leaves of a walk were added
        self._known: dict[tuple[int, tuple[int, ...]], Found] = {}
        self._inside: dict[tuple[int, tuple[int, ...]], Found] = {}  # what is stacked → one of its layers

    def add(self, found: Found) -> None:
        """Add a variable.

        Raises:
            SharingError: it holds a layer that another one holds; the error names both paths.
        """
        cell = found.variable._cell
        origin, indices = origin_of(cell)
        place = (id(origin), indices)
        known = self._known.setdefault(place, found)
        if known.variable._cell is cell and known is not found:
            return  # the same variable again
        if known is not found:
            raise self._twice(known, found, ())
        if place in self._inside:
            inner = self._inside[place]
            raise self._twice(found, inner, origin_of(inner.variable._cell)[1][len(indices) :])
        for depth in range(len(indices)):
            above = (id(origin), indices[:depth])
            if above in self._known:
                raise self._twice(self._known[above], found, indices[depth:])
            self._inside.setdefault(above, found)

    def _twice(self, first: Found, view: Found, inner: tuple[int, ...]) -> SharingError:
        """The error for a stacked variable, or another view, and a view that is ``inner`` to it."""
        names = self._names() if self._names is not None else ()
        if not inner:
            do = "index the stack once, block = model.blocks[1], and use this one view in all places"
        elif first.root == view.root:
            do = (
                "do not store a view in the model: write self.blocks[1] where it is needed, or store a copy, "
                "plait.clone(model.blocks[1])"
            )
        else:
            do = (
                "pass the model alone, and use model.blocks[1] inside the function; what is passed or returned to be "
                "read can be a copy, plait.clone(model.blocks[1])"
            )
        return SharingError(
            "a layer of a stack was given twice",
            at=f"{_place(first, names, inner)} and {_place(view, names, ())} (the same {type(view.variable).__name__})",
            found="a stack and a view of one of its layers" if inner else "two views of one layer",
            expected="each layer once, since a view counts as a block of its own",
            do=do,
        )


def _place(found: Found, names: Sequence[str], inner: Sequence[int]) -> str:
    if found.path is None:
        return "an object that was given before"
    root = names[found.root] if found.root < len(names) else ""
    text = format_path(_in_layer(found.path(), inner))
    return root + (text if not (root and text) or text.startswith("[") else f".{text}") or "the root"


def _in_layer(path: Path, indices: Sequence[int]) -> Path:
    """The path of a stacked value in one layer, given its place in each stack."""
    places = iter(indices)
    named = []
    for key in path:
        layers = layers_of(key)
        place = None if layers is None else next(places, None)
        named.append(key if layers is None or place is None else layers[place])
    return tuple(named)


def check_once(root: Any, walk: Walk | None) -> None:
    """Raise if a layer of a stack was walked twice.

    Raises:
        SharingError: names both paths.
    """
    if not views_exist():
        return
    if walk is not None:
        _check_leaves(walk)
        return
    once = LayersOnce()
    for place in places(root):
        if place.kind is Kind.VARIABLE and place.first is None:
            once.add(Found(place.value, 0, lambda place=place: place.path))


def _check_leaves(walk: Walk) -> None:
    """Check the leaves that a walk found since it was checked last."""
    once: LayersOnce | None = walk.noted
    if once is None:
        once = walk.noted = LayersOnce(walk.names)
        own = set(map(id, walk.leaves))
        for item in walk.refs:
            if isinstance(item, Variable) and id(item) not in own:
                once.add(Found(item, walk.roots, None))
    for number in range(once.checked, len(walk.leaves)):
        leaf = walk.leaves[number]
        if isinstance(leaf, Variable):
            once.add(Found(leaf, walk.roots, functools.partial(path_of, walk.links[number])))
    once.checked = len(walk.leaves)
