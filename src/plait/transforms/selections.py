"""Selections: positions and ``DiffState``s that choose what is differentiated, resolved for one call. (rules X2, X13,
U25)"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import trace_state
from ..core.graph.flatten import path_of
from ..core.graph.graphdef import GraphDef, VariableDef
from ..core.objects.named import Sentinel
from ..core.objects.rngs import RngState
from ..core.objects.state import FlatState, State
from ..core.objects.variable_kinds import Param
from ..core.objects.variables import Variable, make_variable
from ..errors import ArgumentError, ArgumentTypeError
from ..ground.notices import warn_nothing_selected
from ..ground.words import describe_type, name_of_class
from ..typing import FilterLiteral
from .call.call import Call
from .call.enter import rebuild
from .call.names import parameter_names
from .call.prefixes import FilterMapping, is_graph_leaf

# The input ports.
DIFFERENTIATED = Sentinel(__name__, "DIFFERENTIATED", "differentiated")
LEFT_ALONE = Sentinel(__name__, "LEFT_ALONE", "left alone")


@dataclasses.dataclass(frozen=True)
class DiffState:
    """Selects the leaves of one argument that ``grad`` differentiates.

    Args:
        argnum: position of the argument.
        filter: selects its leaves.

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
    """The position of the argument."""
    return argnum.argnum if isinstance(argnum, DiffState) else argnum


def check_argnums(
    name: str, option: str, argnums: Any, *, updates: bool, count: int | None = None
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
    given = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
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


def spread_filters(args: tuple[Any, ...], kwargs: dict[str, Any], filters: Mapping[int, FilterLiteral]) -> list[Any]:
    """The prefix of each leaf of the arguments: which part of it is differentiated, by the filters of some of them."""
    spread = [
        _as_prefix(leaf, filters[number]) if number in filters else LEFT_ALONE
        for number, argument in enumerate(args)
        for leaf in jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    ]
    return spread + [LEFT_ALONE] * len(jax.tree_util.tree_leaves(kwargs, is_leaf=is_graph_leaf))


def _as_prefix(leaf: Any, filter: FilterLiteral) -> Any:
    """Which leaves of an object are differentiated; variables and arrays are differentiated as a whole."""
    if filter is ... or isinstance(leaf, Variable) or not is_graph_leaf(leaf):
        return DIFFERENTIATED
    return FilterMapping([(filter, DIFFERENTIATED), (..., LEFT_ALONE)])


def check_differentiable(name: str, call: Call) -> None:
    """Raise if a variable with integers would be differentiated.

    Raises:
        ArgumentTypeError: names the path and the type.
    """
    port = call.ports.index(DIFFERENTIATED)
    for position, value in enumerate(call.gathered.values()):
        for leaf in jax.tree_util.tree_leaves(value) if call.body.value_ports[position] == port else ():
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or dtype == jax.dtypes.float0:
                continue
            do = "pass allow_int=True" if name in ("grad", "value_and_grad", "jacrev") else "convert it: .astype(float)"
            if call.body.structural:  # otherwise there is no DiffState
                arguments = enumerate(call.gathered.structure.arguments())
                number = next(number for number, argument in arguments if position in argument.values)
                do = (
                    f"exclude it: argnums=plait.DiffState({number}, plait.All(plait.Param, "
                    "lambda path, v: jnp.issubdtype(v.dtype, jnp.inexact))), use a variable type other than Param, or "
                    + do
                )
            raise ArgumentTypeError(
                f"{name} cannot differentiate with respect to integers",
                at=call.body.value_labels()[position],
                found=f"{dtype}{list(leaf.shape)}",
                expected="floating point numbers",
                do=do,
            )


def warn_of_nothing(name: str, call: Call, count: int, given: Sequence[int | DiffState]) -> None:
    """Warn if nothing is differentiated, or if a given filter matches nothing.

    Args:
        count: the number of positional arguments.

    Warns:
        NothingSelectedWarning: names the argument, the filter, and the existing kinds.
    """
    walk, arguments, port = call.gathered.walk, call.gathered.structure.arguments(), call.ports.index(DIFFERENTIATED)
    if walk is None:
        return
    asked = []
    for argnum in given:
        structure, values, plain = arguments[number_of(argnum) % count]
        asked.append((argnum, structure, values, not plain and all(call.body.value_ports[i] != port for i in values)))
    are_all_empty = all(is_empty for *_, is_empty in asked)
    for argnum, structure, values, is_empty in asked:
        if is_empty and structure.roots and (are_all_empty or isinstance(argnum, DiffState)):
            number, kinds = number_of(argnum) % count, walk.types[values.start : values.stop]
            warn_nothing_selected(
                name,
                argnum.filter if isinstance(argnum, DiffState) else Param,
                kinds,
                at=f"argument {parameter_names(call.f).at(number)}",
                so="so the gradient is empty",
                do=_what_to_select(number, kinds),
            )


def _what_to_select(number: int, kinds: Sequence[type | None]) -> str:
    numeric = [kind for kind in kinds if kind is not None and not issubclass(kind, RngState)]
    if not numeric:
        return f"differentiate with respect to another argument: argnums={0 if number else 1}"
    kind = Param if Param in numeric else numeric[0]
    return f"select variables that the argument has: argnums=plait.DiffState({number}, {name_of_class(kind)})"


def gradients_of(call: Call, wanted: Sequence[int], part: Sequence[Any], *, states: bool) -> tuple[Any, ...]:
    """The gradients of some arguments.

    Args:
        wanted: their positions.
        part: the gradients, in the order of the differentiated port.
        states: whether the gradient of a module is a ``State``; otherwise it is a module.
    """
    port, supply = call.ports.index(DIFFERENTIATED), iter(part)
    values = [next(supply) if own == port else None for own in call.body.value_ports]
    plain = [next(supply) if own == port else None for own in call.body.plain_ports]
    structure = call.gathered.structure
    arguments = structure.arguments()
    if not states and any(arguments[number].structure.roots for number in wanted):
        gradients = rebuild(structure, values, plain)[0]
        return tuple(gradients[number] for number in wanted)

    def gradient(graphdef: GraphDef, positions: list[int]) -> Any:
        """Gradients with the classes, metadata and paths of their leaves."""
        walk, trace = call.gathered.walk, trace_state.value
        assert walk is not None
        chosen = [position for position in positions if call.body.value_ports[position] == port]
        leaves = []
        for position in chosen:
            cls, cell, value = walk.types[position], walk.cells[position], values[position]
            leaves.append(value if cls is None else make_variable(cls, value, cell.metadata, trace))
        if isinstance(graphdef, VariableDef):
            return leaves[0] if leaves else State({})
        return FlatState.from_sorted(tuple(path_of(walk.links[i]) for i in chosen), leaves).to_nested_state()

    found = [arguments[number] for number in wanted]
    return tuple(each.structure.unflatten(gradient, each.values, [plain[i] for i in each.plain]) for each in found)
