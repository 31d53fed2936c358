"""Trees of tangents: flattening and building derivatives of modules along the primal tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.graphdef import GraphDef, VariableDef
from ..core.graph.unflatten import own_variables, plan_of
from ..core.graph.walks import Walk, is_graph_leaf, path_of
from ..core.states.state import FlatState, State
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..typing import Node, Tree, Value
from ..util.paths import Path, describe_path
from ..util.words import describe_type
from .call.arguments import Structure


def flatten_like(
    structure: Structure, primals: Sequence[Value], tree: Tree, what: str, wanted: Sequence[bool] | None = None
) -> tuple[list[Value], list[Value]]:
    """Flatten a tree of tangents: the values for its objects, and its plain leaves.

    Args:
        structure: the structure of the primal tree.
        primals: the values of its objects, or their shapes.
        what: the name of the tree, for errors.
        wanted: which of those values a state may contain; by default, any.

    Raises:
        ArgumentError: the tree does not match.
    """
    try:
        parts = structure.treedef.flatten_up_to(tree)
    except ValueError:
        raise _misfit(structure, tree, what) from None
    values: list[Value] = []
    plain: list[Value] = []
    for graphdef, part in zip(structure.graphdefs, parts, strict=True):
        if graphdef is None:
            if not jax.tree_util.all_leaves([part]):
                raise _misfit(structure, tree, what)
            plain.append(part)
        else:
            own = slice(len(values), len(values) + graphdef.num_leaves)
            chosen = None if wanted is None else wanted[own]
            values += leaves_like(graphdef, primals[own], part, what, chosen, complete=False)
    return values, plain


def _misfit(structure: Structure, tree: Tree, what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} has a different structure than the primal",
        found=str(jax.tree_util.tree_structure(tree, is_leaf=lambda x: is_graph_leaf(x) or isinstance(x, State))),
        expected=str(structure.treedef),
        do="use the structure of the primal: an array for each array, a module or a State for each module",
    )


def leaves_like(
    graphdef: GraphDef,
    primals: Sequence[Value],
    tangent: Value,
    what: str,
    wanted: Sequence[bool] | None = None,
    *,
    complete: bool = True,
) -> list[Value]:
    """The tangent of each leaf of an object, given as an object of the same structure or as a ``State``.

    Args:
        wanted: which leaves a state must have, and no others. By default a state may omit any leaf, which means zero.
        complete: whether it must have them all.

    Raises:
        ArgumentError: the tangent has an unexpected leaf, or lacks one.
    """
    paths = [path for _, path in Structure(None, (graphdef,)).leaf_paths()]
    found = leaves_by_path(tangent)
    is_state = isinstance(tangent, Mapping) and not is_graph_leaf(tangent)
    known, needed = paths, paths
    if is_state:
        needed = []
    if wanted is not None:
        chosen = [(path, primal) for path, primal, flag in zip(paths, primals, wanted, strict=True) if flag]
        needed = [
            path for path, primal in chosen if complete and all(map(has_tangent, jax.tree_util.tree_leaves(primal)))
        ]
        known = [path for path, _ in chosen] if is_state else paths
    unknown = [path for path in found if path not in known]
    source = "model" if wanted is None or complete else "model, plait.Param"
    for path in unknown or [path for path in needed if path not in found]:
        raise ArgumentError(
            f"{what} has missing or unexpected leaves",
            at=describe_path(path),
            found=f"{'a leaf' if unknown else 'nothing'} there, in {describe_type(tangent)}",
            expected=f"a module, variable or State with the leaves {', '.join(map(describe_path, known)) or '(none)'}",
            do=f"create it from the primal: jax.tree.map(jnp.zeros_like, plait.state({source})), and set its values",
        )
    return [_tangent_of(primal, found.get(path)) for path, primal in zip(paths, primals, strict=True)]


def leaves_by_path(tangent: Value) -> dict[Path, Value]:
    """The raw leaves of a module, variable or state by their paths; anything else is a single leaf."""
    if not is_graph_leaf(tangent) and not isinstance(tangent, Mapping):
        return {(): tangent}
    walk = Walk()
    walk.add(tangent)
    raws = [leaf._cell.raw if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    return {path_of(link): raw for link, raw in zip(walk.links, raws, strict=True)}


def state_of_values(node: Node) -> State:
    """The raw values of a module, with its paths."""
    return FlatState(leaves_by_path(node).items(), sort=True).to_nested_state()


def state_of(graphdef: GraphDef, leaves: Sequence[Value]) -> State | Value:
    """Leaves of an object as a ``State`` with its paths; the leaf of a variable as a variable.

    For an object that occurred before, and so has no leaves here, the state is empty.
    """
    items = [
        own_variables([part], [leaf])[0] if isinstance(part, VariableDef) else leaf
        for part, leaf in zip(plan_of(graphdef).leaf_defs, leaves, strict=True)
    ]
    if isinstance(graphdef, VariableDef):
        return items[0]
    paths = [path for _, path in Structure(None, (graphdef,)).leaf_paths()]
    return FlatState(zip(paths, items, strict=True), sort=True).to_nested_state()


def shapes_of(values: Sequence[Value]) -> tuple[Value, ...]:
    """A tree of arrays as a tree of their shapes, to avoid keeping the arrays alive."""
    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), values)


def has_tangent(primal: Value) -> bool:
    """Whether an array, or a shape, can have a nonzero tangent."""
    return jnp.issubdtype(jnp.result_type(primal), jnp.inexact)


def zero_tangent(primal: Value) -> Value:
    """The zero tangent of an array or shape; of type ``float0`` if it has no other tangent."""
    if has_tangent(primal):
        return jnp.zeros(jnp.shape(primal), jnp.result_type(primal))
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)


def _tangent_of(primal: Value, tangent: Value) -> Value:
    if tangent is None:
        return jax.tree_util.tree_map(zero_tangent, primal)
    if all(map(has_tangent, jax.tree_util.tree_leaves(primal))):
        return tangent
    return jax.tree_util.tree_map(lambda p, t: t if has_tangent(p) else zero_tangent(p), primal, tangent)
