"""Arguments and results of a backward rule: cotangents in the form that each mode uses for modules. (rule X16)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..core.graph.graphdef import VariableDef
from ..core.graph.unflatten import Builder, own_variables
from ..core.objects.state import State
from ..errors import ArgumentTypeError
from ..words import describe_type
from .call.enter import rebuild
from .call.gather import Structure
from .call.names import parameter_names
from .call.outcome import Address, Outcome
from .call.prefixes import is_graph_leaf
from .rule_calls import RuleCall, follow
from .tangent_trees import leaves_like, state_of


def cotangents_as_states(call: RuleCall, outcome: Outcome, cotangents: Sequence[Any]) -> Any:
    """``(input_updates_g, out_g)`` with states in place of modules."""

    def states(structure: Structure, sources: Sequence[Address], plain: Sequence[Any]) -> Any:
        leaves = iter(follow(sources, cotangents))
        supply = iter(plain)
        parts = []
        for graphdef in structure.graphdefs:
            own = [] if graphdef is None else [next(leaves) for _ in range(graphdef.num_leaves)]
            parts.append(next(supply) if graphdef is None else state_of(graphdef, own))
        return jax.tree_util.tree_unflatten(structure.treedef, parts)

    before = call.structure
    supply = iter(outcome.arguments or before.roots)
    after = Structure(before.treedef, tuple(None if g is None else next(supply) for g in before.graphdefs))
    arguments = states(after, outcome.sources_of_arguments(), [None] * len(call.plain_labels))[0]
    assert outcome.output is not None
    out_g = states(outcome.output, outcome.output_sources, follow(outcome.plain, cotangents))
    return call.parted(_only_objects(call, arguments))[1], out_g


def _only_objects(call: RuleCall, arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with ``None`` for those without objects."""
    pairs = zip(arguments, call.argument_structures(), strict=True)
    return [argument if structure.roots else None for argument, structure in pairs]


def cotangents_as_objects(outcome: Outcome, cotangents: Sequence[Any]) -> Any:
    """``out_g`` with modules in place of modules."""
    assert outcome.output is not None
    values, plain = follow(outcome.output_sources, cotangents), follow(outcome.plain, cotangents)
    return rebuild(outcome.output, values, plain)


def cotangents_of_updates(call: RuleCall, outcome: Outcome, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with the cotangents of written variables, and ``None`` elsewhere."""
    builder = Builder(make_variables=_own_or_none)
    written = {position: cotangents[address.place] for position, address in outcome.written}
    parts, start = [], 0
    for graphdef in call.structure.graphdefs:
        if graphdef is None:
            parts.append(None)
            continue
        positions = range(start, start := start + graphdef.num_leaves)
        parts.append(builder.build(graphdef, [written.get(position) for position in positions]))
    return tuple(_only_objects(call, jax.tree_util.tree_unflatten(call.structure.treedef, parts)[0]))


def _own_or_none(definitions: Sequence[VariableDef], leaves: Sequence[Any]) -> list[Any]:
    """Variables with the leaves as values; ``None`` stays ``None``."""
    pairs = zip(definitions, leaves, strict=True)
    return [None if leaf is None else own_variables([part], [leaf])[0] for part, leaf in pairs]


def tangents_by_label(call: RuleCall, returned: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a backward rule for each input; ``None`` means zero.

    Raises:
        ArgumentTypeError: the result is not a tuple with an entry for each differentiable argument, or an entry has a
            different structure.
    """
    structures = call.argument_structures()
    count = len(structures) - len(call.fixed)
    if not isinstance(returned, (tuple, list)) or len(returned) != count:
        raise ArgumentTypeError(
            "custom_vjp: the backward rule did not return one tangent for each differentiable argument",
            found=f"{len(returned)} tangents" if isinstance(returned, (tuple, list)) else describe_type(returned),
            expected=f"a tuple of {count}",
            do="return a tuple, with None for an argument whose gradient is zero",
        )
    values: list[Any] = []
    plain: list[Any] = []
    supply, names = iter(returned), parameter_names(call.fun)
    for number, (treedef, graphdefs) in enumerate((each.treedef, each.graphdefs) for each in structures):
        given = [None] * len(graphdefs) if number in call.fixed else _spread(next(supply), treedef, names.at(number))
        for tangent, graphdef in zip(given, graphdefs, strict=True):
            if graphdef is None:
                plain.append(tangent)
                continue
            part = slice(len(values), len(values) + graphdef.num_leaves)
            if tangent is None:
                values += [None] * graphdef.num_leaves
            else:
                what = f"custom_vjp: the tangent of argument {names.at(number)}"
                values += leaves_like(graphdef, call.shapes[part], tangent, what, call.free[part])
    return call.labelled([v if free else None for v, free in zip(values, call.free, strict=True)], plain)


def _spread(tangent: Any, treedef: Any, name: str) -> list[Any]:
    """The tangent for each leaf of an argument, where ``None`` applies to everything below it."""
    found: list[Any] = []
    outline = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))

    def place(part: Any, below: Any) -> None:
        leaves = jax.tree_util.tree_leaves(below)
        if part is not None and leaves != [below]:
            raise ValueError(f"one leaf for {len(leaves)}")
        found.extend([part] * len(leaves))

    def stops(x: Any) -> bool:
        return x is None or is_graph_leaf(x) or isinstance(x, State)

    try:
        jax.tree_util.tree_map(place, tangent, outline, is_leaf=stops)
    except ValueError as error:
        raise ArgumentTypeError(
            f"custom_vjp: the tangent of argument {name} has a different structure than the argument",
            found=f"{jax.tree_util.tree_structure(tangent, is_leaf=stops)} ({str(error).splitlines()[0]})",
            expected=f"{treedef}, or None for a part whose gradient is zero",
            do="return a tree with the structure of the argument, with a State (or a module) for each module",
        ) from None
    return found
