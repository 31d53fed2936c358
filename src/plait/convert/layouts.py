"""Layouts: under which names and in which order of axes another library stores the variables of a layer.

The layout of a class is a function of one module of that class. It returns the pieces that the other library stores,
with the conversion in both directions. Variables that no piece names, and those of classes without a layout, have the
same name and shape in both libraries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ..util.paths import Path
from ..util.words import describe_type

Arrays = Sequence[np.ndarray]


class DoesNotFit(ValueError):
    """Raised by a piece: the values exist, but the other library cannot store them."""


def _same(array: np.ndarray) -> Arrays:
    return (array,)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Variables of a module, and the other library's arrays with the same values.

    Args:
        ours: paths of the variables, relative to the module, as dotted names: ``"kernel"``, ``"query.kernel"``.
        theirs: names of the other library's arrays, relative to the module's name.
        to_ours: takes one array for each of ``theirs`` and returns one for each of ``ours``.
        to_theirs: the inverse.

    Example:
        >>> piece = plait.convert.Piece("kernel", "weight", lambda w: [w.T], lambda k: [k.T])
        >>> piece.ours, piece.theirs
        (('kernel',), ('weight',))
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Callable[..., Arrays]
    to_theirs: Callable[..., Arrays]

    def __init__(
        self,
        ours: str | Sequence[str],
        theirs: str | Sequence[str],
        to_ours: Callable[..., Arrays] = _same,
        to_theirs: Callable[..., Arrays] = _same,
    ) -> None:
        object.__setattr__(self, "ours", (ours,) if isinstance(ours, str) else tuple(ours))
        object.__setattr__(self, "theirs", (theirs,) if isinstance(theirs, str) else tuple(theirs))
        object.__setattr__(self, "to_ours", to_ours)
        object.__setattr__(self, "to_theirs", to_theirs)

    def their_shapes(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes of the other library's arrays, from those of the variables."""
        blank = [np.broadcast_to(np.zeros((), np.int8), shape) for shape in shapes]
        return [array.shape for array in self.to_theirs(*blank)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """One layout of a layer in the other library.

    Args:
        pieces: the pieces.
        ignored: the other library's names that a plait layer does not need, such as a count of batches.
    """

    pieces: tuple[Piece, ...]
    ignored: tuple[str, ...] = ()


# A layout may return several alternatives, the usual one first; the one whose names are in the checkpoint is used.
# If there is no such layout, each part of the layer is looked up separately.
LayoutOf = Callable[[Any], Sequence[Layout]]

# By library, then by class. ``register_layout`` fills it. It is never emptied, and keeps the classes alive.
_LAYOUTS: dict[str, dict[type, LayoutOf]] = {"torch": {}, "linen": {}, "nnx": {}}


def register_layout(library: str, cls: type, layout: Callable[[Any], Sequence[Piece]]) -> None:
    """Register the layout of a layer class in another library, for ``convert_checkpoint`` and ``to_torch``.

    Args:
        library: ``"torch"``, ``"linen"`` or ``"nnx"``.
        cls: a module class; subclasses without their own layout inherit it.
        layout: returns the pieces of a module of this class.

    Raises:
        ArgumentError: there is no such library.
        ArgumentTypeError: ``cls`` is not a class.

    Example:
        >>> class Scale(plait.Module):
        ...     def __init__(self):
        ...         self.factor = plait.Param(jnp.ones(3))
        >>> plait.convert.register_layout("torch", Scale, lambda scale: [plait.convert.Piece("factor", "gamma")])
        >>> list(plait.convert.to_torch(Scale()))
        ['gamma']
    """
    if not isinstance(cls, type):
        raise ArgumentTypeError(
            "register_layout takes a module class",
            found=describe_type(cls),
            expected="a class",
            do="pass the class itself: register_layout('torch', MyLayer, ...)",
        )

    def only(module: Any) -> Sequence[Layout]:
        pieces = tuple(layout(module))
        return (Layout(pieces),) if pieces else ()

    add_layout(library, cls, only)


def add_layout(library: str, cls: type, layout: LayoutOf) -> None:
    """Register a layout with alternatives, or with names that a plait layer does not need."""
    check_library(library)[cls] = layout


def check_library(library: str) -> dict[type, LayoutOf]:
    """The layouts of a library.

    Raises:
        ArgumentError: there is no such library.
    """
    if library not in _LAYOUTS:
        raise ArgumentError(
            "there is no layout of this name",
            found=f"layout={library!r}",
            expected=" or ".join(map(repr, _LAYOUTS)),
            do="layout='torch' for PyTorch's state dicts and safetensors, 'nnx' for checkpoints of Flax NNX, "
            "'linen' for Linen's",
        )
    return _LAYOUTS[library]


def alternatives(library: str, module: Any) -> Sequence[Layout]:
    """The layouts of a module, by the nearest class that has one."""
    table = check_library(library)
    for cls in type(module).__mro__:
        if cls in table:
            return table[cls](module)
    return ()


def path_of_name(name: str) -> Path:
    """A dotted name as a path, with numbers as indices."""
    return tuple(int(step) if step.isdecimal() else step for step in name.split("."))


def follow(node: Any, path: Path) -> Any:
    """The part of a node at a path."""
    for key in path:
        node = getattr(node, key) if isinstance(key, str) and not isinstance(node, dict) else node[key]
    return node
