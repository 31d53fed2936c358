"""The check that a graph holds no layer of a stack twice: in the stack and in a view of it, or in two views.

To a walk a view is a separate block, so a state, a copy or a checkpoint would hold its values twice, and what is
written to one of the two would be lost. (In a list of blocks both places have one object.) Walks check the variables
that they found, and ``visit`` checks before it starts; a program without views pays nothing. (rule ST17)
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...core.graph.walks import Walk, path_of
from ...core.nodes.nodes import Kind, Place, places
from ...core.variables.variables import Variable
from ...errors import SharingError
from ...util.paths import Path, format_path, layers_of
from .layer_cells import origin_of, views_exist


class _Found(NamedTuple):
    """A variable, and where it was found.

    Attributes:
        root: the number of the root.
        path: computes the path from there; ``None`` if it is not known.
    """

    variable: Variable[Any]
    root: int
    path: Callable[[], Path] | None


def check_once(root: Any, walk: Walk | None) -> None:
    """Raise if a layer of a stack was walked twice.

    Raises:
        SharingError: names both paths.
    """
    if not views_exist():
        return
    placed = []
    for number, found in enumerate(_in_walk(walk) if walk is not None else _in_visit(root)):
        origin, indices = origin_of(found.variable._cell)
        placed.append((id(origin), indices, number, found))
    placed.sort()
    # What is stacked comes right before the first of its layers.
    twice = [
        (max(number, later), first, view, indices[len(above) :])
        for (origin, above, number, first), (other, indices, later, view) in itertools.pairwise(placed)
        if origin == other and indices[: len(above)] == above and first.variable._cell is not view.variable._cell
    ]
    if twice:
        _, first, view, inner = min(twice, key=operator.itemgetter(0))
        names = walk.names() if walk is not None and walk.names is not None else ()
        at = f"{_place(first, names, inner)} and {_place(view, names, ())}"
        raise SharingError(
            "a layer of a stack was given twice",
            at=f"{at} (the same {type(view.variable).__name__})",
            found="a stack and a view of one of its layers" if inner else "two views of one layer",
            expected="each layer once, since a view counts as a block of its own",
            do="do not store a view in the model or pass it beside its stack: write model.blocks[1] where it is "
            "needed, once; or use a copy, plait.clone(model.blocks[1])",
        )


def _in_walk(walk: Walk) -> list[_Found]:
    own = set(map(id, walk.leaves))
    earlier = [_Found(item, 0, None) for item in walk.refs if isinstance(item, Variable) and id(item) not in own]
    return earlier + [
        _Found(leaf, bisect.bisect(walk.ends, number), functools.partial(path_of, link))
        for number, (leaf, link) in enumerate(zip(walk.leaves, walk.links, strict=True))
        if isinstance(leaf, Variable)
    ]


def _in_visit(root: Any) -> list[_Found]:
    def found(place: Place) -> _Found:
        return _Found(place.value, 0, lambda: place.path)

    return [found(place) for place in places(root) if place.kind is Kind.VARIABLE and place.first is None]


def _place(found: _Found, names: Sequence[str], inner: Sequence[int]) -> str:
    """Where a value is; of a stacked one, in one layer, given its place in each stack."""
    if found.path is None:
        return "an object that was given before"
    indices = iter(inner)
    path = []
    for key in found.path():
        layers = layers_of(key)
        index = None if layers is None else next(indices, None)
        path.append(key if layers is None or index is None else layers[index])
    root, text = names[found.root] if found.root < len(names) else "", format_path(tuple(path))
    return root + (text if not (root and text) or text.startswith("[") else f".{text}") or "the root"
