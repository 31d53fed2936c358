"""One call of a function that has a derivative rule of its own, as a function of arrays.

JAX calls either the function or its rule, on its own, at a time of its choosing; both must return the same tree. So
both return the value that every input variable has at the end, whether written or not, then the values of new
objects, then the plain leaves of the output. What of it was written is known to Python alone, from whichever of the
two ran within the call: only that reaches the caller's objects. (rules U19, U31, X16)
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import register_static

from ..core.objects.filters import to_predicate
from ..core.objects.nodes import Static
from ..core.objects.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError
from ..paths import joined
from .call.aliasing import Treatment, check_aliasing
from .call.arguments import argument_names
from .call.crossing import (
    Entered,
    Gathered,
    Left,
    Outcome,
    Structure,
    check_arguments,
    gather,
    leave,
    leave_values_only,
    reveal,
    write_back,
)
from .call.prefixes import is_graph_leaf
from .selections import DiffState, as_prefix, check_distinct, chosen_positions, labelled_roots
from .tangent_trees import shapes_of

# Where a value is: -1 - i for the final value of the i-th input, i for the i-th new one.
Route = int


@register_static
@dataclasses.dataclass(frozen=True)
class Report:
    """The static half of what a function, or its rule, left.

    Attributes:
        outcome: what to do to the caller's objects.
        values: the route of each value of the outcome.
        arguments: the graphdefs of the objects of the arguments, afterwards.
        argument_routes: the routes of their leaves.
        output: the structure of the output.
        output_routes: the routes of the leaves of its objects.
    """

    outcome: Outcome
    values: tuple[Route, ...]
    arguments: tuple[Any, ...]
    argument_routes: tuple[Route, ...]
    output: Structure
    output_routes: tuple[Route, ...]

    def structure(self) -> tuple[Any, ...]:
        """What must be the same for a function and its rule; they may write different variables."""
        outcome = self.outcome
        return (outcome.arguments, outcome.mapping, self.argument_routes, self.output, self.output_routes)


class RuleCall:
    """The arguments of one call, and what becomes of them.

    JAX keeps the rule, and with it this, for as long as it keeps a program that calls the function. After the call it
    therefore holds no array and no object.

    Attributes:
        inputs: the values of the objects, and the plain leaves, by what a user calls each.
        structure: of the arguments.
        shapes: of the values of their objects.
        free, plain_free: which of the inputs are differentiable.
        fixed: the positions in ``nondiff_argnums`` that are integers.
        fixed_labels: what the values of objects at those are called.
        report: of the function or of its rule, whichever left first.
    """

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        nondiff_argnums: Sequence[int | DiffState],
        *,
        graph: bool | None,
        updates: bool,
    ) -> None:
        self.name, self.updates = name, updates
        args = _resolve_arguments(name, fun, args, kwargs)
        count = len(args)
        check_distinct(name, "nondiff_argnums", nondiff_argnums, count)
        self.fixed = {number % count for number in nondiff_argnums if not isinstance(number, DiffState)}
        filters = {each.argnum % count: each.filter for each in nondiff_argnums if isinstance(each, DiffState)}
        args = tuple(Static(a) if i in self.fixed and not _has_arrays(a) else a for i, a in enumerate(args))
        self._gathered: Gathered | None = (gathered := gather((args, {})))
        self.structure = gathered.structure
        check_arguments(name, fun, (args, {}), graph, updates)
        roots = labelled_roots(fun, args, {})
        if updates:
            _check_no_fixed_objects(name, roots, self.fixed)
        if len(roots) > 1 and filters:
            treated = [(label, root, filters.get(number, ...)) for number, label, root in roots]
            check_aliasing(name, [Treatment(label, r, as_prefix(r, filter)) for label, r, filter in treated], {})
        walk = gathered.walk
        paths = [] if walk is None else walk.paths()
        self.labels: list[str] = []
        self.free: list[bool] = []
        self.fixed_labels: set[str] = set()
        for place, (number, label, root) in enumerate(roots):
            assert walk is not None
            start = len(self.labels)
            positions = range(start, start + walk.counts[place])
            chosen = set(chosen_positions(walk, place, root, to_predicate(filters.get(number, ...))))
            self.labels += [joined(label, paths[position]) for position in positions]
            if number in self.fixed:
                self.fixed_labels.update(self.labels[start:])
            self.free += [number not in self.fixed and position in chosen for position in positions]
        names = argument_names(fun, count)
        plain = [
            (names[number] + jax.tree_util.keystr(path), number not in self.fixed)
            for number, argument in enumerate(args)
            for path, leaf in jax.tree_util.tree_flatten_with_path(argument, is_leaf=is_graph_leaf)[0]
            if not is_graph_leaf(leaf)
        ]
        self.plain_labels = [label for label, _ in plain]
        self.plain_free = [free for _, free in plain]
        self.report: Report | None = None
        values = gathered.values()
        self.shapes = shapes_of(values)
        self.inputs: Any = self.labelled(values, gathered.plain)

    def argument_trees(self) -> list[Any]:
        """The treedef of each argument, with leaves for objects."""
        return self.structure.treedef.children()[0].children()

    def labelled(self, values: Sequence[Any], plain: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Something for each input, by label: what JAX says about it then names it."""
        return dict(zip(self.labels, values, strict=True)), dict(zip(self.plain_labels, plain, strict=True))

    def in_order(self, values: dict[str, Any], plain: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """The reverse of ``labelled``."""
        return [values[label] for label in self.labels], [plain[label] for label in self.plain_labels]

    def enter(self, values: dict[str, Any], plain: dict[str, Any]) -> Entered:
        """Step 2 of the crossing."""
        return Entered(self.structure, *self.in_order(values, plain))

    def arguments(self, entered: Entered) -> list[Any]:
        """The arguments for the function."""
        return [reveal(argument) for argument in entered.tree[0]]

    def parted(self, arguments: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """The arguments without derivative, and the others."""
        return (
            [argument for i, argument in enumerate(arguments) if i in self.fixed],
            tuple(argument for i, argument in enumerate(arguments) if i not in self.fixed),
        )

    def check_unmoved(self, moves: Callable[[Any], bool], values: dict[str, Any], plain: dict[str, Any]) -> None:
        """Refuse to differentiate by what the rule has no derivative for.

        Raises:
            ArgumentError: names the leaf.
        """
        for free, labels, given in ((self.free, self.labels, values), (self.plain_free, self.plain_labels, plain)):
            for is_free, label in zip(free, labels, strict=True):
                if not is_free and any(map(moves, jax.tree_util.tree_leaves(given[label]))):
                    raise ArgumentError(
                        f"{self.name}: the function is differentiated by a value that its rule leaves out",
                        at=label,
                        found="a derivative is asked for",
                        expected="none: nondiff_argnums leaves it out",
                        do="leave it out of grad, too, or pass jax.lax.stop_gradient(value)",
                    )

    def leave(self, entered: Entered, out: Any) -> tuple[tuple[list[Any], list[Any], list[Any]], Report]:
        """Step 3: the values for JAX, and the report."""
        left = (leave if self.updates else leave_values_only)(entered, out, self.name)
        variables = entered.variables()
        pairs = list(zip(variables, entered.values, strict=True))
        finals = [value if variable is None else variable._cell.raw for variable, value in pairs]
        fresh: list[Any] = []
        known = {id(value if variable is None else variable): i for i, (variable, value) in enumerate(pairs)}
        routes = []
        for leaf in left.walk.leaves:
            position = known.get(id(leaf)) if self.updates else None
            if position is None:
                fresh.append(leaf._cell.raw if isinstance(leaf, Variable) else leaf)
            routes.append(len(fresh) - 1 if position is None else -1 - position)
        report = self._report(left, out, entered, routes, known)
        if self.report is None:
            self.report = report
        elif self.report.structure() != report.structure():
            raise ArgumentError(
                f"{self.name}: the function and its rule leave different structures",
                found="other types, attributes or references in the arguments or the output of one of them",
                expected="the same structure from both; only values may differ",
                do="call the function itself in the rule, and return what it returns",
            )
        plain = [x for x in jax.tree_util.tree_leaves(out, is_leaf=is_graph_leaf) if not is_graph_leaf(x)]
        return (finals, fresh, plain), report

    def _report(self, left: Left, out: Any, entered: Entered, routes: list[Route], known: dict[int, int]) -> Report:
        before = tuple(graphdef for graphdef in entered.structure.graphdefs if graphdef is not None)
        values = [origin if origin < 0 else routes[origin] for origin in left.origins]
        end = left.ends[len(before) - 1] if before else 0

        def through_the_rule(number: int, source: int) -> int:
            """Where a leaf comes from. A new variable that holds an input's value gets it from the rule, or the
            derivative of the value would find a way around it."""
            if source >= 0 or known.get(id(left.walk.leaves[number])) == -1 - source:
                return source
            values.append(routes[number])
            return len(values) - 1

        outcome = dataclasses.replace(
            left.outcome,
            argument_sources=tuple(itertools.starmap(through_the_rule, enumerate(left.outcome.argument_sources))),
            output_sources=tuple(itertools.starmap(through_the_rule, enumerate(left.outcome.output_sources, end))),
        )
        treedef = jax.tree_util.tree_structure(out, is_leaf=is_graph_leaf)
        output = outcome.output or Structure(treedef, (None,) * treedef.num_leaves)
        if self.updates:
            arguments = outcome.arguments or before
            return Report(outcome, tuple(values), arguments, tuple(routes[:end]), output, tuple(routes[end:]))
        unmoved = tuple(-1 - position for position in range(len(entered.values)))
        return Report(outcome, tuple(values), before, unmoved, output, tuple(routes))

    def finish(self, outputs: tuple[list[Any], list[Any], list[Any]]) -> Any:
        """Step 4: write back what was written. Returns the output."""
        finals, fresh, plain = outputs
        report = self.report
        gathered, self._gathered, self.inputs = self._gathered, None, None
        assert report is not None
        assert gathered is not None
        values = follow(report.values, finals, fresh)
        whole: Any = plain
        if report.outcome.output is None:
            whole = jax.tree_util.tree_unflatten(report.output.treedef, plain)
        return write_back(report.outcome, gathered, values, whole)


def follow(routes: Sequence[Route], finals: Sequence[Any], fresh: Sequence[Any]) -> list[Any]:
    """What stands at some routes."""
    return [fresh[route] if route >= 0 else finals[-1 - route] for route in routes]


def _has_arrays(argument: Any) -> bool:
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    return any(is_graph_leaf(leaf) or isinstance(leaf, jax.Array) for leaf in leaves)


def _resolve_arguments(
    name: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """All arguments by position, defaults too, as the rule gets them. (rule X1)"""
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
            f"{name} takes no arguments that can only be given by keyword",
            found=f"the arguments {sorted(bound_kwargs)}",
            expected="arguments that have a position, for the rule to name",
            do="make them positional in the signature of the function",
        )
    return bound_args


def _check_no_fixed_objects(name: str, roots: Sequence[tuple[Any, str, Any]], fixed: set[int]) -> None:
    for number, label, root in roots:
        if number in fixed:
            raise ArgumentTypeError(
                f"{name} takes no integer in nondiff_argnums for an argument that holds modules or variables",
                at=label,
                found=f"nondiff_argnums has {number}, and the argument a {type(root).__name__}",
                expected="a DiffState, which says what of it is differentiable",
                do=f"write plait.DiffState({number}, False) if nothing of it is, or use graph_updates=False",
            )
