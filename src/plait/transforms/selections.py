"""What is differentiated: positions and ``DiffState``s, resolved for one call. (rules X2, X13, U25)"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import trace_state
from ..core.graph.walks import CachedWalk
from ..core.objects.filters import to_predicate
from ..core.objects.nodes import Kind, kind_of
from ..core.objects.rngs import RngState
from ..core.objects.state import FlatState, State
from ..core.objects.variables import Param, Variable, make_variable
from ..errors import ArgumentError, ArgumentTypeError
from ..notices import warn_nothing_selected
from ..typing import FilterLiteral
from ..words import name_of_class
from .call.aliasing import Treatment, check_aliasing
from .call.arguments import argument_names
from .call.crossing import Entered, Gathered
from .call.lanes import value_labels
from .call.prefixes import FilterMapping, is_graph_leaf


@dataclasses.dataclass(frozen=True)
class DiffState:
    """Which leaves of one argument ``grad`` differentiates.

    Args:
        argnum: position of the argument.
        filter: which of its leaves.

    Example:
        >>> loss = lambda model, x: model(x).sum()
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> only_bias = plait.DiffState(0, plait.PathContains("bias"))
        >>> list(plait.grad(loss, argnums=only_bias)(model, jnp.ones((1, 2))))
        ['bias']
    """

    argnum: int
    filter: FilterLiteral = Param


def number_of(argnum: int | DiffState) -> int:
    """The position that it is about."""
    return argnum.argnum if isinstance(argnum, DiffState) else argnum


def check_distinct(name: str, option: str, argnums: Sequence[int | DiffState], count: int | None = None) -> None:
    """Refuse positions that are given twice; with the number of arguments also those that there are not.

    Raises:
        ArgumentError: a position is repeated, or counts back too far.
        ArgumentTypeError: there are not so many positional arguments.
    """
    numbers = [number_of(argnum) for argnum in argnums]
    if count is not None:
        for number in numbers:
            if not -count <= number < count:
                raise (ArgumentTypeError if number >= 0 else ArgumentError)(
                    f"{name} was given the position of an argument that was not passed by position",
                    found=f"{option}={number} and {count} positional arguments",
                    expected=f"a number below {count}",
                    do="pass the argument by position",
                )
        numbers = [number % count for number in numbers]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        raise ArgumentError(
            f"{name} was given an argument number twice",
            found=f"{option}={tuple(argnums)!r}, with {', '.join(map(str, repeated))} repeated",
            expected="each argument once",
            do="give each argument once, with the filters joined: "
            f"plait.DiffState({repeated[0]}, (plait.Param, plait.BatchStat))",
        )


def check_updates(name: str, option: str, argnums: Sequence[int | DiffState]) -> None:
    """Refuse a choice by filter where only values are carried. (section 9)

    Raises:
        ArgumentError: a ``DiffState``.
    """
    for argnum in argnums:
        if isinstance(argnum, DiffState):
            raise ArgumentError(
                f"{name} with graph=False or graph_updates=False takes no DiffState",
                at=option,
                found=repr(argnum),
                expected="an integer: the derivative of a module is then a module",
                do=f"pass {argnum.argnum}, or use graph_updates=True",
            )


def resolve(name: str, argnum: int | DiffState, count: int, updates: bool) -> DiffState:
    """The request in full: a position from the front, and a filter."""
    if not updates:
        check_updates(name, "argnums", [argnum])
    request = argnum if isinstance(argnum, DiffState) else DiffState(argnum, Param if updates else ...)
    return DiffState(request.argnum % count, request.filter)


def check_sharing(
    name: str, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], requests: Sequence[DiffState]
) -> None:
    """Refuse a variable that is reached through two arguments, one differentiated and the other not. (rule U25)"""
    filters = {request.argnum: request.filter for request in requests}
    treatments = []
    for number, label, root in labelled_roots(f, args, kwargs):
        if number not in filters:
            treatments.append(Treatment(label, root, "left alone"))
        else:
            treatments.append(Treatment(label, root, as_prefix(root, filters[number])))
    check_aliasing(name, treatments, {})


def check_differentiable(
    name: str, f: Any, args: tuple[Any, ...], gathered: Gathered, selections: Sequence[Selection]
) -> None:
    """Refuse to differentiate by variables that hold integers.

    Raises:
        ArgumentTypeError: names the path and the type.
    """
    walk = gathered.walk
    if walk is None:
        return
    roots = [label for _, label, _ in labelled_roots(f, args, {})]
    labels = value_labels(gathered, roots + [""] * (len(walk.counts) - len(roots)))  # keywords are not differentiated
    for position in [position for selection in selections for position in selection.positions]:
        for leaf in jax.tree_util.tree_leaves(walk.cells[position].raw):
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or dtype == jax.dtypes.float0:
                continue
            raise ArgumentTypeError(
                f"{name} was asked to differentiate by integers",
                at=labels[position],
                found=f"{dtype}{list(leaf.shape)}",
                expected="floating point numbers",
                do="leave it out: argnums=plait.DiffState(0, plait.All(plait.Param, lambda path, v: "
                "jnp.issubdtype(v.dtype, jnp.inexact))), give it another kind than Param, or pass allow_int=True",
            )


def warn_of_nothing(
    name: str,
    f: Any,
    args: tuple[Any, ...],
    gathered: Gathered,
    given: Sequence[int | DiffState],
    selections: Sequence[Selection],
) -> None:
    """Warn if nothing is differentiated, or nothing for a filter that was asked for.

    Warns:
        NothingSelectedWarning: names the argument, the filter, and what there is.
    """
    empty = [not selection.positions and not selection.plain for selection in selections]
    if not any(empty) or gathered.walk is None:
        return
    walk, names = gathered.walk, argument_names(f, len(args))
    roots = [number for number, argument in enumerate(args) for _ in _objects(argument)]
    for argnum, is_empty in zip(given, empty, strict=True):
        number = number_of(argnum) % len(args)
        if is_empty and number in roots and (all(empty) or isinstance(argnum, DiffState)):
            starts = itertools.accumulate(walk.counts, initial=0)
            kinds = [
                kind
                for root, start, count in zip(roots, starts, walk.counts, strict=False)
                if root == number
                for kind in walk.types[start : start + count]
            ]
            warn_nothing_selected(
                name,
                argnum.filter if isinstance(argnum, DiffState) else Param,
                kinds,
                at=f"argument {names[number]}",
                so="so the gradient is empty",
                do=_what_to_select(number, kinds),
            )


def _what_to_select(number: int, kinds: Sequence[type | None]) -> str:
    numeric = [kind for kind in kinds if kind is not None and not issubclass(kind, RngState)]
    if not numeric:
        return f"differentiate with respect to another argument: argnums={0 if number else 1}"
    kind = Param if Param in numeric else numeric[0]
    return f"select what the argument has: argnums=plait.DiffState({number}, {name_of_class(kind)})"


def _objects(argument: Any) -> list[Any]:
    return [leaf for leaf in jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf) if is_graph_leaf(leaf)]


def as_prefix(root: Any, filter: FilterLiteral) -> Any:
    """Which leaves of an object are differentiated, as a prefix; a variable is differentiated as a whole."""
    if isinstance(root, Variable):
        return "differentiated"
    return FilterMapping([(filter, "differentiated"), (..., "left alone")])


def labelled_roots(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, str, Any]]:
    """The objects of the arguments: position or keyword, what a user calls it (``models[0]``), and the object."""
    names = argument_names(f, len(args))
    sides = [(i, names[i], argument) for i, argument in enumerate(args)] + [(k, k, v) for k, v in kwargs.items()]
    return [
        (key, label + jax.tree_util.keystr(path), leaf)
        for key, label, argument in sides
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument, is_leaf=is_graph_leaf)[0]
        if is_graph_leaf(leaf)
    ]


class Selection:
    """The differentiated part of one argument: positions among the values (objects) or plain leaves (anything else)."""

    def __init__(self, positions: list[int], plain: list[int], result: Callable[[list[Any]], Any]) -> None:
        self.positions = positions
        self.plain = plain
        self.result = result

    def take(self, values: list[Any], plain: list[Any]) -> list[Any]:
        return [values[i] for i in self.positions] + [plain[i] for i in self.plain]

    def put(self, values: list[Any], plain: list[Any], part: list[Any]) -> None:
        count = len(self.positions)
        for i, value in zip(self.positions, part[:count], strict=True):
            values[i] = value
        for i, value in zip(self.plain, part[count:], strict=True):
            plain[i] = value


def select(gathered: Gathered, args: tuple[Any, ...], request: DiffState, updates: bool) -> Selection:
    """Find the leaves that a request is about."""
    number = request.argnum
    argument = args[number]
    leaves_before = jax.tree_util.tree_leaves(args[:number], is_leaf=is_graph_leaf)
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    root_number = sum(map(is_graph_leaf, leaves_before))
    plain_number = len(leaves_before) - root_number
    if not any(map(is_graph_leaf, leaves)):
        structure = jax.tree_util.tree_structure(argument)
        return Selection(
            [],
            list(range(plain_number, plain_number + len(leaves))),
            lambda part: jax.tree_util.tree_unflatten(structure, part),
        )
    assert gathered.walk is not None
    predicate = to_predicate(request.filter)
    roots = [leaf for leaf in leaves if is_graph_leaf(leaf)]
    parts: list[Any] = []
    positions: list[int] = []
    for offset, root in enumerate(roots):
        chosen = chosen_positions(gathered.walk, root_number + offset, root, predicate)
        positions += chosen
        parts.append((root, chosen))
    plain = list(range(plain_number, plain_number + len(leaves) - len(roots)))
    walk = gathered.walk

    def module(part: list[Any]) -> Any:
        inner_values, inner_plain = [None] * sum(walk.counts), [None] * len(gathered.plain)
        selection.put(inner_values, inner_plain, part)
        return Entered(gathered.structure, inner_values, inner_plain).tree[0][number]

    def result(part: list[Any]) -> Any:
        supply, rest = iter(part), iter(part[len(positions) :])
        gradients = [_gradient(walk, root, chosen, supply) for root, chosen in parts]
        if is_graph_leaf(argument):
            return gradients[0]
        objects = iter(gradients)
        return jax.tree_util.tree_map(
            lambda leaf: next(objects) if is_graph_leaf(leaf) else next(rest), argument, is_leaf=is_graph_leaf
        )

    selection = Selection(positions, plain, result if updates else module)
    return selection


def chosen_positions(walk: CachedWalk, number: int, root: Any, predicate: Any) -> list[int]:
    """Positions, among all values, of the leaves of one root that a filter matches."""
    start = sum(walk.counts[:number])
    chosen = []
    paths = walk.paths()
    for position in range(start, start + walk.counts[number]):
        cls, cell = walk.types[position], walk.cells[position]
        probe = cell.raw if cls is None else make_variable(cls, cell.raw, cell.metadata, None)
        if kind_of(root) is Kind.VARIABLE or predicate(paths[position], probe):
            chosen.append(position)
    return chosen


def _gradient(walk: CachedWalk, root: Any, chosen: list[int], supply: Any) -> Any:
    """Gradients with the classes, metadata and paths of the leaves they belong to."""
    paths = walk.paths()
    trace = trace_state.value
    leaves = []
    for position in chosen:
        cls, cell = walk.types[position], walk.cells[position]
        gradient = next(supply)
        leaves.append(gradient if cls is None else make_variable(cls, gradient, cell.metadata, trace))
    if isinstance(root, Variable):
        return leaves[0] if leaves else State({})
    return FlatState.from_sorted(tuple(paths[position] for position in chosen), leaves).to_nested_state()
