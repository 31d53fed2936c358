"""How the variables of a layer lie in another library: the same numbers, under other names and in other orders.

A layout of a class is a function of one module of that class. It gives the pieces that hold the module's numbers on
the other side, each with the way there and the way back. Variables that no piece names, and those of classes without
a layout, have the same name and shape on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ..paths import Path
from ..words import describe_type

Arrays = Sequence[np.ndarray]


class DoesNotFit(ValueError):
    """Raised by a piece: the numbers are there, and the other side has no place for them."""


def _same(array: np.ndarray) -> Arrays:
    return (array,)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Variables of a module, and the foreign arrays that hold the same numbers.

    Args:
        ours: paths of the variables from the module, each a dotted name: ``"kernel"``, ``"query.kernel"``.
        theirs: names of the foreign arrays from the module's own name.
        to_ours: takes one array for each of ``theirs`` and gives one for each of ``ours``.
        to_theirs: the way back.

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
        """The shapes of the foreign arrays, from those of the variables."""
        blank = [np.broadcast_to(np.zeros((), np.int8), shape) for shape in shapes]
        return [array.shape for array in self.to_theirs(*blank)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way in which the other library lays out a layer.

    Args:
        pieces: the pieces.
        ignored: foreign names that hold nothing a plait layer needs, such as a count of batches.
    """

    pieces: tuple[Piece, ...]
    ignored: tuple[str, ...] = ()


# A layout gives several alternatives, the usual one first; that whose names are in the checkpoint is used. If none
# is, each part of the layer is looked for by itself.
LayoutOf = Callable[[Any], Sequence[Layout]]

# By the name of the library, then by class. Who fills it: ``register_layout``. It is never emptied, and holds the
# classes alive.
_LAYOUTS: dict[str, dict[type, LayoutOf]] = {"torch": {}, "linen": {}}


def register_layout(library: str, cls: type, layout: Callable[[Any], Sequence[Piece]]) -> None:
    """State how the layers of a class lie in another library, for ``convert_checkpoint`` and ``to_torch``.

    Args:
        library: ``"torch"`` or ``"linen"``.
        cls: a class of modules; subclasses without a layout of their own have it too.
        layout: gives the pieces of a module of this class.

    Raises:
        ArgumentError: there is no such library.
        ArgumentTypeError: ``cls`` is no class.

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
            "a layout is registered for a class of modules",
            found=describe_type(cls),
            expected="a class",
            do="pass the class itself: register_layout('torch', MyLayer, ...)",
        )
    add_layout(library, cls, lambda module: (Layout(tuple(layout(module))),))


def add_layout(library: str, cls: type, layout: LayoutOf) -> None:
    """The same for a layout with alternatives."""
    check_library(library)[cls] = layout


def check_library(library: str) -> dict[type, LayoutOf]:
    """The layouts of a library.

    Raises:
        ArgumentError: there is no such library.
    """
    if library not in _LAYOUTS:
        raise ArgumentError(
            "the layout is that of another library",
            found=f"layout={library!r}",
            expected=" or ".join(map(repr, _LAYOUTS)),
            do="layout='torch' for state dicts and safetensors of PyTorch, layout='linen' for Linen's checkpoints",
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
    """A dotted name as a path, numbers as indices."""
    return tuple(int(step) if step.isdecimal() else step for step in name.split("."))
