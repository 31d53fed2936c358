"""``cond`` and ``switch``: one of several functions, chosen at run time, whose operands may be modules.

Every branch returns the values of all variables that it was given, changed or not, so that all return the same; JAX
drops those that no branch changes. What else the branches do must be the same in all. (rules X22, U29)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from ..core.functional.modes import graph_updates_mode
from ..core.graph.diff import diff
from ..errors import ArgumentError, ArgumentTypeError
from ..paths import joined
from .call.arguments import parameter_names
from .call.crossing import (
    Gathered,
    Outcome,
    Result,
    Structure,
    check_function,
    gather_checked,
    lift,
    write_back,
)


def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.lax.cond`` for functions of modules.

    Args:
        pred: boolean scalar.
        true_fun, false_fun: functions of the operands that return outputs of one structure.
        *operands: arrays, modules and pytrees of them. The branch that runs changes them.

    Returns:
        What the chosen function returns.

    Raises:
        ArgumentError: the branches leave, or return, different structures; shows the difference by path.

    Example:
        >>> count = plait.Variable(jnp.zeros(()))
        >>> def up(count):
        ...     count[...] += 1
        >>> plait.cond(True, up, lambda count: None, count)
        >>> float(count[...])
        1.0
    """
    return _choose("cond", pred, (true_fun, false_fun), operands, graph, graph_updates)


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.lax.switch`` for functions of modules.

    Args:
        index: integer scalar; clamped to the number of branches.
        branches: functions of the operands that return outputs of one structure.
        *operands: arrays, modules and pytrees of them. The branch that runs changes them.

    Returns:
        What the chosen function returns.

    Raises:
        ArgumentError: there is no branch, or two leave or return different structures.

    Example:
        >>> scale = plait.Variable(jnp.float32(3))
        >>> float(plait.switch(1, [lambda s: s[...], lambda s: s[...] * 2], scale))
        6.0
    """
    return _choose("switch", index, tuple(branches), operands, graph, graph_updates)


def _choose(
    name: str,
    index: Any,
    branches: tuple[Callable[..., Any], ...],
    operands: tuple[Any, ...],
    graph: bool | None,
    graph_updates: bool | None,
) -> Any:
    for branch in branches:
        check_function(branch, name)
    if not branches:
        raise ArgumentError(
            f"{name} needs a branch",
            found="an empty sequence",
            expected="at least one function",
            do=f"pass the branches as a sequence: plait.{name}(index, [f, g], x)",
        )
    updates = graph_updates_mode(graph_updates)
    gathered = gather_checked(name, branches[0], (operands, {}), graph, updates)
    lifted = [lift(f, gathered.structure, name, updates=updates, all_returned=True) for f in branches]
    left: list[Any] = [None] * len(lifted)  # what each branch left, as far as it is static: nothing traced may stay

    def checked(number: int) -> Callable[..., Result]:
        def run(values: Any, plain: Any) -> Result:
            result = lifted[number](values, plain)
            left[number] = result.outcome, jax.tree_util.tree_structure(result.plain), _types(result)
            first = next(i for i, known in enumerate(left) if known is not None)
            if left[first] != left[number]:
                titles = _title(branches, first, number)
                if left[first][:2] != left[number][:2]:
                    _raise_different(name, gathered, left[first], left[number], titles)
                _check_same_types(name, gathered, left[first], left[number], titles, parameter_names(branches[0]))
            return result

        return run

    functions = [checked(number) for number in range(len(lifted))]
    inputs = gathered.values(), gathered.plain
    if name == "cond":
        result = jax.lax.cond(index, *functions, *inputs)
    else:
        result = jax.lax.switch(index, functions, *inputs)
    return write_back(*_only_changed(result, gathered), result.plain)


def _only_changed(result: Result, gathered: Gathered) -> tuple[Outcome, Gathered, list[Any]]:
    """The outcome without the variables that no branch changed: JAX hands their values through as they are."""
    outcome, before = result.outcome, gathered.values()
    if not outcome.is_plain:
        return outcome, gathered, result.values
    pairs = [(p, v) for p, v in zip(outcome.written, result.values, strict=True) if v is not before[p]]
    return Outcome(tuple(p for p, _ in pairs)), gathered, [v for _, v in pairs]


def _types(result: Result) -> tuple[tuple[tuple[Any, ...], ...], ...]:
    """Shape and dtype of each leaf of each value, then of each plain leaf of the output."""
    values = [*result.values, *jax.tree_util.tree_leaves(result.plain)]
    return tuple(
        tuple((jax.typeof(leaf).shape, jax.typeof(leaf).dtype) for leaf in jax.tree_util.tree_leaves(value))
        for value in values
    )


def _check_same_types(
    name: str, gathered: Gathered, first: Any, second: Any, titles: list[str], names: list[str]
) -> None:
    """Refuse branches that leave another shape or dtype in the same place.

    Raises:
        ArgumentTypeError: names the path, and both types.
    """
    outcome, _, types = first
    graphdefs = outcome.arguments or tuple(graphdef for graphdef in gathered.structure.graphdefs if graphdef)
    paths = Structure(None, graphdefs).leaf_paths()
    places = ["the output"] * len(types)
    for leaf, value in enumerate(outcome.argument_sources):
        if value >= 0:
            places[value] = joined(names[paths[leaf][0]] if paths[leaf][0] < len(names) else "", paths[leaf][1])
    for value, position in enumerate(outcome.written):
        root, path = paths[position]
        places[value] = joined(names[root] if root < len(names) else "", path)
    for place, mine, other in zip(places, types, second[2], strict=True):
        if mine != other:
            raise ArgumentTypeError(
                f"{name}: {titles[0]} and {titles[1]} leave values of different types",
                at=place,
                found=f"{_show_types(other)} from {titles[1]}",
                expected=f"{_show_types(mine)}, as from {titles[0]}",
                do="make shape and dtype the same in every branch, for example with .astype(...)",
            )


def _show_types(types: tuple[Any, ...]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types) or "nothing"


def _title(branches: tuple[Callable[..., Any], ...], *numbers: int) -> list[str]:
    names = [getattr(branches[number], "__name__", "") for number in numbers]
    return [f"branch {number}" + (f" ({name})" if name else "") for number, name in zip(numbers, names, strict=True)]


def _raise_different(name: str, gathered: Gathered, first: Any, second: Any, titles: list[str]) -> NoReturn:
    """Say how what two branches left differs, by path."""
    (before, tree, _), (after, other_tree, _) = first, second
    if before == after:
        found, expected = f"{other_tree} from {titles[1]}", f"{tree}, as from {titles[0]}"
    else:
        unchanged = tuple(graphdef for graphdef in gathered.structure.graphdefs if graphdef is not None)
        pairs = list(zip(before.arguments or unchanged, after.arguments or unchanged, strict=True))
        if before.output is not None and after.output is not None:
            outputs = zip(before.output.graphdefs, after.output.graphdefs, strict=False)
            pairs += [(x, y) for x, y in outputs if x is not None and y is not None]
        lines = [str(line) for x, y in pairs for line in diff(x, y)]
        found = "; ".join(lines) or f"other references, or another output, from {titles[1]}"
        expected = f"the structure that {titles[0]} leaves"
    raise ArgumentError(
        f"{name}: {titles[0]} and {titles[1]} leave different structures (types, attributes or references)",
        found=found,
        expected=expected,
        do="make the same structural changes in every branch, and return outputs of one structure",
    )
