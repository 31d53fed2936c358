"""Selections: positions and ``DiffState``s that choose what is differentiated, resolved for one call. (rules X2, X13,
U25)"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from ..core.graph.walks import is_graph_leaf
from ..core.variables.filters import to_predicate
from ..core.variables.variable_kinds import Param
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import FilterLiteral, Tree, Value
from ..util.sentinels import Sentinel
from ..util.words import describe_filter, describe_type
from .call.prefixes import FilterMapping

# The input ports.
DIFFERENTIATED = Sentinel(__name__, "DIFFERENTIATED", "differentiated")
LEFT_ALONE = Sentinel(__name__, "LEFT_ALONE", "left alone")


@dataclasses.dataclass(frozen=True)
class DiffState:
    """Selects the leaves of one argument that ``grad`` differentiates.

    Args:
        argnum: position of the argument.
        filter: selects its leaves.

    Raises:
        FilterTypeError: the filter is none.

    Example:
        >>> loss = lambda model, x: model(x).sum()
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> only_bias = plait.DiffState(0, plait.PathContains("bias"))
        >>> list(plait.grad(loss, argnums=only_bias)(model, jnp.ones((1, 2))))
        ['bias']
    """

    argnum: int
    filter: FilterLiteral = Param

    def __post_init__(self) -> None:
        to_predicate(self.filter)

    def __repr__(self) -> str:
        return f"DiffState({self.argnum!r}, {describe_filter(self.filter)})"


def number_of(argnum: int | DiffState) -> int:
    """The position of the argument."""
    return argnum.argnum if isinstance(argnum, DiffState) else argnum


def check_argnums(
    name: str, option: str, argnums: object, *, updates: bool, count: int | None = None
) -> tuple[int | DiffState, ...]:
    """The given positions and ``DiffState``s as a tuple.

    Args:
        argnums: one or several.
        updates: whether structure is carried; otherwise there is no selection by filter. (section 9)
        count: the number of positional arguments, once it is known.

    Raises:
        ArgumentError: an entry is neither a position nor a ``DiffState``, a ``DiffState`` is not possible, a position
            is repeated, or a negative position is out of range.
        ArgumentTypeError: there are fewer positional arguments.
    """
    given: tuple[Any, ...] = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    for argnum in given:
        if is_graph_leaf(argnum) or not hasattr(number_of(argnum), "__index__"):
            raise ArgumentError(
                f"{name} takes the positions of arguments",
                at=option,
                found=describe_type(argnum),
                expected="an integer, or a plait.DiffState(position, filter)",
                do=f"pass the position of the argument: plait.{name}(f, {option}={0 if option == 'argnums' else (0,)})",
            )
        if isinstance(argnum, DiffState) and not updates:
            raise ArgumentError(
                f"{name} with graph=False or graph_updates=False does not accept a DiffState",
                at=option,
                found=repr(argnum),
                expected="an integer: the derivative of a module is then a module",
                do=f"pass {argnum.argnum}" + (", or use graph_updates=True" if name != "custom_jvp" else ""),
            )
    given = tuple(each if isinstance(each, DiffState) else operator.index(each) for each in given)
    _check_distinct(name, option, given, count)
    return given


def _check_distinct(name: str, option: str, argnums: Sequence[int | DiffState], count: int | None) -> None:
    numbers = [number_of(argnum) for argnum in argnums]
    if count is not None:
        for number in numbers:
            if not -count <= number < count:
                raise (ArgumentTypeError if number >= 0 else ArgumentError)(
                    f"{name} refers to the position of an argument that was not passed by position",
                    found=f"{option}={number} and {count} positional arguments",
                    expected=f"a number below {count}",
                    do="pass the argument by position",
                )
        numbers = [number % count for number in numbers]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        raise ArgumentError(
            f"{name} got an argument number twice",
            found=f"{option}={tuple(argnums)!r}, with {', '.join(map(str, repeated))} repeated",
            expected="each argument once",
            do="pass each argument number once, with a combined filter: "
            f"plait.DiffState({repeated[0]}, (plait.Param, plait.BatchStat))",
        )


def spread_filters(
    args: tuple[Tree, ...], kwargs: dict[str, Tree], filters: Mapping[int, FilterLiteral]
) -> list[Value]:
    """The prefix of each leaf of the arguments: which part of it is differentiated, by the filters of some of them."""
    spread = [
        _as_prefix(leaf, filters[number]) if number in filters else LEFT_ALONE
        for number, argument in enumerate(args)
        for leaf in jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    ]
    return spread + [LEFT_ALONE] * len(jax.tree_util.tree_leaves(kwargs, is_leaf=is_graph_leaf))


def _as_prefix(leaf: Value, filter: FilterLiteral) -> Hashable:
    """Which leaves of an object are differentiated; variables and arrays are differentiated as a whole."""
    if filter is ... or isinstance(leaf, Variable) or not is_graph_leaf(leaf):
        return DIFFERENTIATED
    return FilterMapping([(filter, DIFFERENTIATED), (..., LEFT_ALONE)])
