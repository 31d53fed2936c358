"""Step 2 of a call, enter: private copies of the arguments, with traced values.

The caller's own objects are never changed while a function is traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ...core.graph.graphdef import GraphDef, VariableDef
from ...core.graph.plan import plan_of
from ...core.graph.unflatten import Builder
from ...core.objects.variables import make_variables
from .gather import Structure


class Entered:
    """The arguments inside the transformed function.

    Attributes:
        tree: the arguments, with private objects.
        roots: the private objects.
        index_ref: outer index → private object.
        values: the traced values of the objects.
    """

    __slots__ = ("index_ref", "roots", "structure", "tree", "values")

    def __init__(
        self, structure: Structure, values: Sequence[Any], plain: Sequence[Any], known: Mapping[int, Any] | None = None
    ) -> None:
        self.structure = structure
        self.values = list(values)
        self.index_ref: dict[int, Any] = dict(known or {})
        builder, roots = Builder(self.index_ref), []

        def make(graphdef: GraphDef, leaves: list[Any]) -> Any:
            roots.append(root := builder.build(graphdef, leaves))
            return root

        self.tree = structure.unflatten(make, self.values, plain)
        self.roots = tuple(roots)

    def variables(self) -> list[Any]:
        """The private variable at each position of the values; ``None`` for array attributes."""
        return [
            self.index_ref[part.index] if isinstance(part, VariableDef) else None  # type: ignore[index]
            for graphdef in self.structure.roots
            for part in plan_of(graphdef).leaves
        ]

    def put(self, values: Mapping[int, Any]) -> None:
        """Store other values in the private variables at these positions, as if they had been entered with them."""
        variables = self.variables()
        for position, value in values.items():
            variables[position]._cell.raw = value


def rebuild(
    structure: Structure, values: Sequence[Any], plain: Sequence[Any], known: Mapping[int, Any] | None = None
) -> Any:
    """Build the tree of a structure with new leaves, such as gradients.

    Args:
        known: index → object, for existing objects that it refers to.
    """
    loose = structure.loose
    if loose is None:
        return Entered(structure, values, plain, known).tree
    leaves = make_variables(loose.kinds, values, loose.metadata)
    if len(leaves) < len(structure.graphdefs):
        objects = {**(known or {}), **dict(zip(loose.indices, leaves, strict=True))}
        supply = iter(plain)
        leaves = [next(supply) if g is None else objects[g.index] for g in structure.graphdefs]  # type: ignore[union-attr]
    return jax.tree_util.tree_unflatten(structure.treedef, leaves)
