"""One call of a function with a custom derivative rule, as a function of arrays.

JAX calls either the function or its rule, at any time; both must return the same tree. So both return the final value
of every input variable, written or not, the values of new objects, and the plain leaves of the output. Which of these
values were written is recorded in Python when one of the two runs during the call; only those are written to the
caller's objects. A backward rule gets cotangents in the form that each mode uses for modules. (rules U19, U31, X16)
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.graph.graphdef import VariableDef
from ..core.graph.modes import Crossing
from ..core.graph.unflatten import Builder, own_variables
from ..core.graph.walks import is_graph_leaf
from ..core.nodes.nodes import Static
from ..core.states.state import State
from ..core.transform import Transformation
from ..core.variables.cells import reopening
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import FilterLiteral, Tree, TreeDef, Value
from ..util.sentinels import Sentinel
from ..util.words import describe_type
from .call.arguments import Structure, argument_name, parameter_names
from .call.body import Propagation, guarded
from .call.call import Call
from .call.enter_leave import TracedArguments, rebuild
from .call.outcome import Address, Outcome
from .selections import DIFFERENTIATED, DiffState, check_argnums, spread_filters
from .tangent_trees import leaves_like, shapes_of, state_of

# The port of all outputs.
OUT = Sentinel(__name__, "OUT", "the output")


class RuleCall:
    """The arguments of one call, and its outcome.

    JAX keeps the rule, and with it this object, as long as it keeps a program that calls the function. So after the
    call it references no array and no object.

    Attributes:
        inputs: the values of the objects, and the plain leaves, by the user's names, which JAX's errors contain.
        body: the function of ports.
        structure: the structure of the arguments.
        shapes: the shapes of the values of their objects.
        labels: the user's name of each input: of the values of the objects, then of the plain leaves.
        free: which of the inputs are differentiable.
        fixed: the positions in ``nondiff_argnums`` that are integers.
        outcome: the outcome of the function or of its rule, whichever finished first.
        records: the records of foreign reads that were open when the function was called.
    """

    def __init__(
        self,
        name: Transformation,
        fun: Callable[..., Tree],
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree],
        nondiff_argnums: Sequence[int | DiffState],
        crossing: Crossing,
    ) -> None:
        self.name, self.fun = name, fun  # the body references it weakly
        args = _resolve_arguments(name, fun, args, kwargs)
        count = len(args)
        check_argnums(name, "nondiff_argnums", nondiff_argnums, updates=True, count=count)
        self.fixed = {number % count for number in nondiff_argnums if not isinstance(number, DiffState)}
        filters: dict[int, FilterLiteral] = {number: ... for number in range(count) if number not in self.fixed}
        filters |= {each.argnum % count: each.filter for each in nondiff_argnums if isinstance(each, DiffState)}
        args = tuple(Static(a) if i in self.fixed and not _has_arrays(a) else a for i, a in enumerate(args))
        if crossing.updates:
            _check_no_fixed_objects(name, fun, args, self.fixed)
        ins = spread_filters(args, {}, filters)
        propagation = Propagation(writes=OUT, all_values=True, returns_inputs=True)
        self._call: Call | None = (
            call := Call(name, fun, args, ins=ins, outs=OUT, crossing=crossing, propagation=propagation)
        )
        self.body, self.structure = call.body, call.gathered.structure
        roots, plain = call.body.labels()
        self.labels = [*self.structure.value_labels(roots), *plain]
        ports = self.body.ports
        self.free = [ports.kinds[port] is DIFFERENTIATED for port in (*ports.values, *ports.plain)]
        self.outcome: Outcome | None = None
        self.reopened = reopening()
        values = call.gathered.values()
        self.shapes = shapes_of(values)
        self.inputs: Any = dict(zip(self.labels, [*values, *call.gathered.plain], strict=True))

    def in_order(self, inputs: dict[str, Value]) -> tuple[list[Value], list[Value]]:
        """The values of the objects, and the plain leaves."""
        found, count = [inputs[label] for label in self.labels], len(self.body.ports.values)
        return found[:count], found[count:]

    def enter(self, inputs: dict[str, Value]) -> TracedArguments:
        """Create private objects with values of the inputs."""
        return TracedArguments(self.structure, *self.in_order(inputs))

    def run(
        self, inputs: dict[str, Value], run: Callable[[TracedArguments], Tree] | None = None
    ) -> tuple[list[Value], Outcome]:
        """The function, or its rule, as a function of the inputs: returns all output values, and the outcome.

        Raises:
            ArgumentError: the function and its rule produce different structures.
        """
        outputs, outcome = self.body(self.body.ports.grouped(*self.in_order(inputs)), run)
        if self.outcome is None:
            self.outcome = outcome
        elif self.outcome.ignoring_writes() != outcome.ignoring_writes():
            raise ArgumentError(
                f"{self.name}: the function and its rule produce different structures",
                found="different types, attributes or references in the arguments or the output",
                expected="the same structure from both; only values may differ",
                do="call the function itself in the rule, and return what it returns",
            )
        return outputs[self.body.ports.kinds.index(OUT)], outcome

    def guarded(self, rule: Callable[..., Tree], *args: Any, **kwargs: Any) -> Tree:
        """Call a rule, whose foreign reads enter the records that were open when the function was called."""
        with self.reopened():
            return guarded(rule, *args, **kwargs)

    def parted(self, arguments: Sequence[Tree]) -> tuple[list[Tree], tuple[Tree, ...]]:
        """The arguments without derivative, and the others."""
        return (
            [argument for i, argument in enumerate(arguments) if i in self.fixed],
            tuple(argument for i, argument in enumerate(arguments) if i not in self.fixed),
        )

    def check_unmoved(self, moves: Callable[[Value], bool], inputs: dict[str, Value]) -> None:
        """Raise if a derivative is requested with respect to a value that the rule excludes.

        Raises:
            ArgumentError: names the leaf.
        """
        for free, label in zip(self.free, self.labels, strict=True):
            if not free and any(map(moves, jax.tree_util.tree_leaves(inputs[label]))):
                raise ArgumentError(
                    f"{self.name}: a derivative was requested with respect to a value that the rule excludes",
                    at=label,
                    found="a request for its derivative",
                    expected="no derivative: nondiff_argnums excludes it",
                    do="exclude it from grad too, or pass jax.lax.stop_gradient(value)",
                )

    def apply(self, rule: Callable[..., Tree]) -> Tree:
        """Call JAX's function with the rule, and write back the written values. Returns the output."""
        call, inputs, self._call, self.inputs = self._call, self.inputs, None, None
        assert call is not None
        values = call.run(rule, inputs)
        assert self.outcome is not None
        return call.finish([values if kind is OUT else [] for kind in self.body.ports.kinds], self.outcome)

    # The arguments and results of a backward rule ---------------------------------------------------------------------

    def cotangents_as_states(self, outcome: Outcome, cotangents: Sequence[Value]) -> Tree:
        """``(input_updates_g, out_g)`` with states in place of modules."""
        before, output = self.structure, outcome.output
        supply = iter(outcome.arguments or before.roots)
        after = Structure(before.treedef, tuple(None if g is None else next(supply) for g in before.graphdefs))
        values = follow(outcome.sources_of_arguments(), cotangents)
        arguments = after.unflatten(state_of, values, itertools.repeat(None))[0]
        assert output is not None
        values, plain = follow(outcome.output_sources, cotangents), follow(outcome.plain, cotangents)
        out_g = output.unflatten(state_of, values, plain)
        return self.parted(self._only_objects(arguments))[1], out_g

    def cotangents_as_objects(self, outcome: Outcome, cotangents: Sequence[Value]) -> Tree:
        """``out_g`` with modules in place of modules."""
        assert outcome.output is not None
        values, plain = follow(outcome.output_sources, cotangents), follow(outcome.plain, cotangents)
        return rebuild(outcome.output, values, plain)

    def cotangents_of_updates(self, outcome: Outcome, cotangents: Sequence[Value]) -> tuple[Tree, ...]:
        """The arguments with the cotangents of written variables, and ``None`` elsewhere."""
        builder = Builder(make_variables=_own_or_none)
        written = {position: cotangents[address.place] for position, address in outcome.written}
        values = [written.get(position) for position in range(len(self.shapes))]
        return tuple(self._only_objects(self.structure.unflatten(builder.build, values, itertools.repeat(None))[0]))

    def _only_objects(self, arguments: Sequence[Tree]) -> list[Value]:
        """The arguments, with ``None`` for those without objects."""
        pairs = zip(arguments, self.structure.arguments(), strict=True)
        return [argument if structure.roots else None for argument, (structure, *_) in pairs]

    def tangents_by_label(self, returned: Tree) -> dict[str, Value]:
        """The results of a backward rule for each input; ``None`` means zero.

        Raises:
            ArgumentTypeError: the result is not a tuple with an entry for each differentiable argument, or an entry has
                a different structure.
        """
        arguments = self.structure.arguments()
        count = len(arguments) - len(self.fixed)
        if not isinstance(returned, (tuple, list)) or len(returned) != count:
            raise ArgumentTypeError(
                "custom_vjp: the backward rule did not return one tangent for each differentiable argument",
                found=f"{len(returned)} tangents" if isinstance(returned, (tuple, list)) else describe_type(returned),
                expected=f"a tuple of {count}",
                do="return a tuple, with None for an argument whose gradient is zero",
            )
        values: list[Value] = []
        plain: list[Value] = []
        supply, names = iter(returned), parameter_names(self.fun)
        for number, (argument, *_) in enumerate(arguments):
            name, given = names.at(number), None if number in self.fixed else next(supply)
            for tangent, graphdef in zip(_spread(given, argument.treedef, name), argument.graphdefs, strict=True):
                if graphdef is None:
                    plain.append(tangent)
                elif tangent is None:
                    values += [None] * graphdef.num_leaves
                else:
                    part = slice(len(values), len(values) + graphdef.num_leaves)
                    what = f"custom_vjp: the tangent of argument {name}"
                    values += leaves_like(graphdef, self.shapes[part], tangent, what, self.free[part])
        found = zip(self.labels, self.free, [*values, *plain], strict=True)
        return {label: tangent if free else None for label, free, tangent in found}


def follow(addresses: Sequence[Address], values: Sequence[Value]) -> list[Value]:
    """The values at some addresses of the outputs."""
    return [values[address.place] for address in addresses]


def _has_arrays(argument: Tree) -> bool:
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    return any(is_graph_leaf(leaf) or isinstance(leaf, jax.Array) for leaf in leaves)


def _resolve_arguments(
    name: str, fun: Callable[..., Tree], args: tuple[Tree, ...], kwargs: dict[str, Tree]
) -> tuple[Tree, ...]:
    """All arguments by position, including defaults, as passed to the rule. (rule X1)"""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        bound_args, bound_kwargs = args, kwargs
    else:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound_args, bound_kwargs = bound.args, bound.kwargs
    if bound_kwargs:
        raise ArgumentTypeError(
            f"{name} does not accept keyword-only arguments",
            found=f"the arguments {sorted(bound_kwargs)}",
            expected="arguments with a position that the rule can refer to",
            do="make them positional in the signature of the function",
        )
    return bound_args


def _check_no_fixed_objects(name: str, fun: Callable[..., Tree], args: tuple[Tree, ...], fixed: set[int]) -> None:
    names = parameter_names(fun)
    for number in sorted(fixed):
        for path, leaf in jax.tree_util.tree_flatten_with_path(args[number], is_leaf=is_graph_leaf)[0]:
            if is_graph_leaf(leaf):
                raise ArgumentTypeError(
                    f"{name} does not accept an integer in nondiff_argnums for an argument with modules or variables",
                    at=argument_name((jax.tree_util.SequenceKey(0), jax.tree_util.SequenceKey(number), *path), names),
                    found=f"nondiff_argnums has {number}, and the argument a {type(leaf).__name__}",
                    expected="a DiffState that selects its differentiable part",
                    do=f"write plait.DiffState({number}, False) to exclude all of it, or use graph_updates=False",
                )


def _own_or_none(definitions: Sequence[VariableDef], leaves: Sequence[Value]) -> list[Value]:
    """Variables with the leaves as values; ``None`` stays ``None``."""
    pairs = zip(definitions, leaves, strict=True)
    return [None if leaf is None else own_variables([part], [leaf])[0] for part, leaf in pairs]


def _spread(tangent: Value, treedef: TreeDef, name: str) -> list[Value]:
    """The tangent for each leaf of an argument, where ``None`` applies to everything below it."""
    found: list[Value] = []

    def stops(x: object) -> bool:
        return x is None or is_graph_leaf(x) or isinstance(x, State)

    def place(part: Tree, below: TreeDef) -> None:
        structure = jax.tree_util.tree_structure(part, is_leaf=stops)
        if part is None or (type(below) is int and jax.tree_util.treedef_is_leaf(structure)):
            found.extend([part] * jax.tree_util.tree_structure(below).num_leaves)
            return
        parts, outlines = (jax.tree_util.tree_flatten(x, is_leaf=lambda y, x=x: y is not x) for x in (part, below))
        if is_graph_leaf(part) or type(below) is int or parts[1] != outlines[1]:
            raise ValueError
        for each in zip(parts[0], outlines[0], strict=True):
            place(*each)

    try:
        place(tangent, jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves)))
    except ValueError:
        raise ArgumentTypeError(
            f"custom_vjp: the tangent of argument {name} has a different structure than the argument",
            found=f"{jax.tree_util.tree_structure(tangent, is_leaf=stops)}",
            expected=f"{treedef}, or None for a part whose gradient is zero",
            do="return a tree with the structure of the argument, with a State (or a module) for each module",
        ) from None
    return found
