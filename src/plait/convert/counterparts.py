"""The counterparts of a model's variables in another library: their names, and the conversion both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from ..core.functional.update import children_by_key
from ..core.graph.traversal import variables
from ..core.intermediates.variable_names import variable_name_from_type
from ..core.nodes.module import Module
from ..core.nodes.nodes import Kind, check_node, kind_of
from ..core.rngs import RngState
from ..core.states.state import FlatState, State, to_flat_state
from ..core.variables.variable_kinds import Cache, Intermediate, Perturbation
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError
from ..util.paths import Path, describe_path, sorted_keys
from ..util.words import describe_type
from .layouts import Layout, Piece, alternatives, follow, path_of_name

# Variables that are not weights: PyTorch and Linen do not store them, and a checkpoint of NNX may leave them out.
_PASSING = (RngState, Cache, Intermediate, Perturbation)


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """Some variables of one module, and their counterpart in the other library.

    Args:
        module: the path of the module and its class, for messages.
        variables: the variables of the model itself.
        paths: their paths in the state of the model.
        collection: their collection.
        names: the full names in the other library.
        piece: converts between them.
        is_again: whether the variables are shared, and were already reached under other names.
    """

    module: str
    variables: tuple[Variable[Any], ...]
    paths: tuple[Path, ...]
    collection: str
    names: tuple[str, ...]
    piece: Piece
    is_again: bool


def counterparts(library: str, model: Any, present: Collection[str] = ()) -> tuple[list[Counterpart], set[str]]:
    """The counterparts of a model's variables, in the order of its graph, and the names that its layers ignore.

    Args:
        library: the other library.
        model: the model.
        present: the existing names, for layers with several layouts.
    """
    walk = _Walk(library, model, frozenset(present))
    found = list(walk.visit((), model, ()))
    stored = [each.variables[0] for each in found if library == "nnx" and walk.present.issuperset(each.names)]
    left_out = tuple(kind for kind in _PASSING if not any(isinstance(variable, kind) for variable in stored))
    return [each for each in found if not isinstance(each.variables[0], left_out)], walk.ignored


def check_model(model: Any, operation: str) -> None:
    """Raise for a value without layers.

    Raises:
        ArgumentTypeError: a state or a variable.
    """
    check_node(model, operation)
    if isinstance(model, (Variable, State, FlatState)):
        raise ArgumentTypeError(
            f"{operation} takes a model, since the layouts depend on its layers",
            found=describe_type(model),
            expected="a module, or a container of modules",
            do="pass the model itself; plait.merge(graphdef, state) makes one of a state",
        )


def is_array(value: Any) -> bool:
    """Whether a variable's value is one array or number, and not a pytree of several."""
    return isinstance(value, (bool, int, float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


class _Walk:
    def __init__(self, library: str, model: Any, present: frozenset[str]) -> None:
        self.library = library
        self.present = present
        self.ignored: set[str] = set()
        self.places = {id(variable): path for path, variable in to_flat_state(variables(model, graph=True))}
        self.taken: set[int] = set()
        self.covered: set[Path] = set()

    def visit(self, path: Path, node: Any, above: tuple[int, ...]) -> Iterator[Counterpart]:
        if id(node) in above:  # a cycle
            return
        place = f"{describe_path(path)} ({type(node).__name__})"
        if isinstance(node, Module):
            layout = self._layout(path, node)
            if layout is not None:
                self.ignored.update(self._prefixed(path, name) for name in layout.ignored)
                for piece in layout.pieces:
                    ours = [(*path, *path_of_name(name)) for name in piece.ours]
                    if not self.covered.issuperset(ours):
                        found = [follow(node, path_of_name(name)) for name in piece.ours]
                        yield self._counterpart(path, place, ours, found, piece)
        children = children_by_key(node)
        for key in sorted_keys(children):
            child, below = children[key], (*path, key)
            kind = kind_of(child)
            if kind is Kind.VARIABLE and isinstance(child, Variable):
                if below not in self.covered:
                    yield self._counterpart(path, place, [below], [child], Piece(str(key), str(key)))
            elif kind in (Kind.GRAPH, Kind.PYTREE) and child is not None:
                yield from self.visit(below, child, (*above, id(node)))

    def _layout(self, path: Path, module: Module) -> Layout | None:
        """The alternative whose names exist; otherwise the usual one."""
        layouts = alternatives(self.library, module)
        for layout in layouts if self.present else ():
            for piece in layout.pieces:
                collection = _collection(follow(module, path_of_name(piece.ours[0])))
                if any(self._full(path, name, collection) in self.present for name in piece.theirs):
                    return layout
        if not layouts or (_reaches_into_parts(layouts[0]) and self._has_names_below(path)):
            return None
        return layouts[0]

    def _has_names_below(self, path: Path) -> bool:
        below = self._prefixed(path, "")
        names = (name.partition(".")[2] for name in self.present) if self.library == "linen" else self.present
        return any(name.startswith(below) for name in names)

    def _counterpart(self, path: Path, place: str, ours: list[Path], found: list[Any], piece: Piece) -> Counterpart:
        self.covered.update(ours)
        is_again = all(id(variable) in self.taken for variable in found)
        self.taken.update(map(id, found))
        collection = _collection(found[0])
        names = tuple(self._full(path, name, collection) for name in piece.theirs)
        places = tuple(self.places[id(variable)] for variable in found)
        return Counterpart(place, tuple(found), places, collection, names, piece, is_again)

    def _full(self, path: Path, name: str, collection: str) -> str:
        name = self._prefixed(path, name)
        return f"{collection}.{name}" if self.library == "linen" else name

    def _prefixed(self, path: Path, name: str) -> str:
        return ".".join([*map(str, path), name])


def _reaches_into_parts(layout: Layout) -> bool:
    return any("." in name for piece in layout.pieces for name in piece.ours)


def _collection(variable: Variable[Any]) -> str:
    """The collection of a variable; for a class without one its class name, which is not registered."""
    try:
        return variable_name_from_type(type(variable))
    except ArgumentError:
        return type(variable).__name__
