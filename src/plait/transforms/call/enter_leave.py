"""Steps 2 and 3 of a call, inside the transform: enter and leave.

The function gets private copies of the arguments, with traced values; the caller's own objects are never changed while
a function is traced. After it ran, arguments and output are walked again with one new index: unless the output has no
objects, and the private ones still hold what they were made of, which is compared in a fraction of the time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence

import jax

from ...core.graph.graphdef import GraphDef, VariableDef
from ...core.graph.locate import check_no_captured_objects
from ...core.graph.unflatten import Builder, plan_of
from ...core.graph.walks import Walk, are_unchanged, is_graph_leaf, path_of
from ...core.nodes.nodes import Static, jax_key_to_key
from ...core.transform import Transformation
from ...core.variables.cells import metadata_key, note_foreign_reads
from ...core.variables.variables import Variable, make_variables
from ...errors import ArgumentError, DispatchError
from ...typing import Node, Tree, Value
from ...util.jax_versions import trace_state
from ...util.paths import format_path
from ...util.static_values import HashableMapping
from .arguments import Structure
from .prefixes import choose

CHECK_DISPATCH = os.environ.get("PLAIT_CHECK_DISPATCH", "0") not in ("", "0")


class TracedArguments:
    """The arguments inside the transformed function.

    Attributes:
        tree: the arguments, with private objects.
        roots: the private objects.
        index_ref: outer index → private object.
        values: the traced values of the objects.
        contents: what a walk would read of the objects, if it is asked for and can be told.
    """

    __slots__ = ("contents", "index_ref", "roots", "structure", "tree", "values")

    def __init__(
        self,
        structure: Structure,
        values: Sequence[Value],
        plain: Sequence[Value],
        known: Mapping[int, Node] | None = None,
        *,
        with_contents: bool = False,
    ) -> None:
        self.structure = structure
        self.values = list(values)
        self.index_ref: dict[int, Node] = dict(known or {})
        builder, roots = Builder(self.index_ref, with_contents=with_contents), []

        def make(graphdef: GraphDef, leaves: list[Value]) -> Node:
            roots.append(root := builder.build(graphdef, leaves))
            return root

        self.tree = structure.unflatten(make, self.values, plain)
        self.roots = tuple(roots)
        self.contents = builder.contents

    def arguments(self) -> tuple[list[Tree], dict[str, Tree]]:
        """The arguments for the function: static ones, which are passed as part of the structure, are unwrapped."""
        args, kwargs = self.tree
        return [*map(_revealed, args)], {name: _revealed(value) for name, value in kwargs.items()}

    def variables(self) -> list[Value]:
        """The private variable at each position of the values; ``None`` for array attributes."""
        return [
            self.index_ref[part.index] if isinstance(part, VariableDef) else None  # type: ignore[index]
            for graphdef in self.structure.roots
            for part in plan_of(graphdef).leaf_defs
        ]

    def is_unchanged(self, variables: Sequence[Value]) -> bool:
        """Whether the structure of the private objects is certainly that with which they were made."""
        if self.contents is None or not are_unchanged(self.contents):
            return False
        definitions = (part for graphdef in self.structure.roots for part in plan_of(graphdef).leaf_defs)
        is_unchanged = all(
            not isinstance(definition, VariableDef) or metadata_key(variable._cell) == definition.metadata
            for variable, definition in zip(variables, definitions, strict=True)
        )
        if is_unchanged and CHECK_DISPATCH:
            self._check()
        return is_unchanged

    def _check(self) -> None:
        """Compare the structure with that of a walk. (``PLAIT_CHECK_DISPATCH=1``)

        Raises:
            DispatchError: they differ.
        """
        walk = Walk()
        found = tuple(map(walk.add, self.roots))
        if found != self.structure.roots or not walk.refs.agrees(self.index_ref):
            raise DispatchError(
                "objects that hold what they were made of have another structure",
                at=", ".join(f"a {type(root).__name__}" for root in self.roots),
                found="a change in an object that a walk reads, and the comparison does not",
                expected="changes by assignment",
                do="this is a bug in plait",
            )

    def put(self, values: Mapping[int, Value]) -> None:
        """Store other values in the private variables at these positions, as if they had been entered with them."""
        variables = self.variables()
        for position, value in values.items():
            variables[position]._cell.raw = value


def _revealed(argument: Tree) -> Tree:
    return argument.value if type(argument) is Static else argument


def rebuild(
    structure: Structure, values: Sequence[Value], plain: Sequence[Value], known: Mapping[int, Node] | None = None
) -> Tree:
    """Build the tree of a structure with new leaves, such as gradients.

    Args:
        known: index → object, for existing objects that it refers to.
    """
    loose = structure.variables_only
    if loose is None:
        return TracedArguments(structure, values, plain, known).tree
    kinds, metadata, indices = loose
    leaves = make_variables(kinds, values, metadata)
    if len(leaves) < len(structure.graphdefs):
        objects = {**(known or {}), **dict(zip(indices, leaves, strict=True))}
        supply = iter(plain)
        leaves = [next(supply) if g is None else objects[g.index] for g in structure.graphdefs]  # type: ignore[union-attr]
    return jax.tree_util.tree_unflatten(structure.treedef, leaves)


class TracedResult:
    """The arguments and the output after the function ran.

    Args:
        labels: returns the user's names of the arguments that are objects, for errors.

    Attributes:
        walk: the walk over arguments and output, or only over the output if only values are carried out, or if the
            arguments certainly have their structure still and the output has no objects.
        ends: the number of leaves after each root of the walk: the arguments, then the objects of the output.
        arguments: the graphdefs of the arguments, or ``None`` if their structure did not change.
        leaves: the leaves of the output, including objects.
        output: the structure of the output.
        raws: the value of each leaf of the walk.
        variables: the private variable at each position of the input values; ``None`` for array attributes.
        after: the current value at each of these positions.
        copies_captured: whether the output has objects of another trace, which come out as copies.
    """

    def __init__(
        self,
        name: Transformation,
        entered: TracedArguments,
        out: Tree,
        structural: bool,
        labels: Callable[[], Sequence[str]],
    ) -> None:
        self.entered = entered
        self.walk = walk = Walk(names=lambda: [*(labels() if structural else ()), *_names_of_output(out)])
        self.variables = entered.variables()
        self.arguments: tuple[GraphDef, ...] | None = None
        self.leaves, treedef = jax.tree_util.tree_flatten(out, is_leaf=is_graph_leaf)
        must_walk = any(map(is_graph_leaf, self.leaves)) or not entered.is_unchanged(self.variables)
        is_walked = structural and must_walk
        if is_walked:
            arguments = tuple(map(walk.add, entered.roots))
            self.arguments = None if self._is_unchanged(arguments) else arguments
        self.argument_count, referred = len(walk.leaves), len(walk.refs)
        graphdefs = tuple(walk.add(leaf) if is_graph_leaf(leaf) else None for leaf in self.leaves)
        self.ends = walk.ends if is_walked else [*(0 for _ in entered.roots), *walk.ends]
        self.output = Structure(treedef, graphdefs)
        self._known = {id(variable): i for i, variable in enumerate(self.variables) if variable is not None}
        self.raws = [leaf._cell.raw if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
        self.copies_captured, here = False, trace_state.value
        if self.arguments is not None or self.output.roots:
            known = set(map(id, entered.index_ref.values()))
            copies = name.copies_captured and (structural or name.abstract)
            checked = itertools.islice(walk.refs, referred) if copies else walk.refs
            check_no_captured_objects(name, checked, known, [*entered.roots, out])
            stamps = [
                item._cell if isinstance(item, Variable) else getattr(item, "_pytree__info", None) for item in walk.refs
            ]
            self.copies_captured = any(getattr(stamp, "trace", here) is not here for stamp in stamps)
            note_foreign_reads(stamps)
        if not structural:
            self._check_no_inputs(name, labels)
        has_attributes = any(variable is None for variable in self.variables)  # `in` would use ==
        self._attributes = self._attribute_leaves() if structural and has_attributes else {}
        now = {position: self.raws[leaf] for leaf, position in self._attributes.items()}
        self.after = [
            now.get(position, entered.values[position]) if variable is None else variable._cell.raw
            for position, variable in enumerate(self.variables)
        ]

    def _check_no_inputs(self, name: Transformation, labels: Callable[[], Sequence[str]]) -> None:
        cells = {id(variable._cell): i for i, variable in enumerate(self.variables) if variable is not None}
        for leaf in self.walk.leaves:
            position = cells.get(id(leaf._cell.stored)) if isinstance(leaf, Variable) else None
            if position is not None:
                raise ArgumentError(
                    f"{name} cannot return an input variable in tree mode or with graph_updates=False",
                    at=self.entered.structure.value_labels(labels())[position],
                    found=f"the {type(leaf).__name__} that was passed as an argument",
                    expected="new objects, or values",
                    do="return variable.value"
                    + ("" if name.only_values else "; or use graph=True and graph_updates=True"),
                )

    def _is_unchanged(self, arguments: tuple[GraphDef, ...]) -> bool:
        """Whether the arguments have the same structure as before."""
        entered = self.entered
        return arguments == entered.structure.roots and self.walk.refs.agrees(entered.index_ref)

    def _attribute_leaves(self) -> dict[int, int]:
        """Leaf of the walk → position of the input array attribute at the same place."""
        leaves = range(self.argument_count)
        if self.arguments is None:
            return {leaf: leaf for leaf in leaves if self.variables[leaf] is None}
        places = {place: i for i, place in enumerate(self.entered.structure.leaf_paths()) if self.variables[i] is None}
        found = {leaf: places.get((self.root(leaf), path_of(self.walk.links[leaf]))) for leaf in leaves}
        return {
            leaf: position
            for leaf, position in found.items()
            if position is not None and not isinstance(self.walk.leaves[leaf], Variable)
        }

    def position_of(self, item: Value) -> int | None:
        """The position of a variable among the input values; ``None`` for others."""
        return self._known.get(id(item))

    def position(self, leaf: int) -> int | None:
        """Like ``position_of``, for a leaf of the walk; an array attribute is identified by its place."""
        return self._attributes.get(leaf, self._known.get(id(self.walk.leaves[leaf])))

    def root(self, leaf: int) -> int:
        """The number of the root that a leaf of the walk belongs to: arguments, then output."""
        return next(number for number, end in enumerate(self.ends) if leaf < end)

    def prefix(self, leaf: int, prefixes: Sequence[Hashable]) -> Hashable:
        """The prefix of a leaf of the walk, which is that of its root: arguments, then output."""
        place = path_of(self.walk.links[leaf]), self.walk.leaves[leaf]
        return choose(prefixes[self.root(leaf)], [place])[0]

    def moved(self) -> HashableMapping[int, int]:
        """Outer index → new index, for the objects that existed before."""
        return HashableMapping(self.walk.refs.moved_from(self.entered.index_ref))


def _names_of_output(out: Tree) -> list[str]:
    places = jax.tree_util.tree_flatten_with_path(out, is_leaf=is_graph_leaf)[0]
    return [format_path(("output", *map(jax_key_to_key, place))) for place, leaf in places if is_graph_leaf(leaf)]
