"""``cond`` and ``switch``: one of several functions, chosen at run time, whose operands may be modules.

Every branch returns the values of all variables that it was given, changed or not, so that all return the same; JAX
drops those that no branch changes. What else the branches do must be the same in all. (rules X22, U29)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.diff import diff
from ..core.modes import check_mode, graph_updates_mode
from ..errors import ArgumentError
from .crossing import Gathered, Outcome, Result, check_function, check_no_duplicates, gather, lift, write_back


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
            f"{name} needs a branch", found="an empty sequence", expected="at least one function", do="add a function"
        )
    gathered = gather((operands, {}))
    updates = graph_updates_mode(graph_updates)
    check_mode(list(gathered.roots), graph)
    if not updates:
        check_no_duplicates(gathered, name)
    lifted = [lift(f, gathered.structure, name, updates=updates, all_returned=True) for f in branches]
    results: list[Result | None] = [None] * len(lifted)

    def checked(number: int) -> Callable[..., Result]:
        def run(values: Any, plain: Any) -> Result:
            result = lifted[number](values, plain)
            results[number] = result
            first = next((i for i, known in enumerate(results) if known is not None), number)
            if first != number:
                _check_same(name, gathered, results[first], result, _title(branches, first), _title(branches, number))
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


def _title(branches: tuple[Callable[..., Any], ...], number: int) -> str:
    name = getattr(branches[number], "__name__", "")
    return f"branch {number}" + (f" ({name})" if name else "")


def _check_same(name: str, gathered: Gathered, first: Any, second: Any, title: str, other: str) -> None:
    """Compare what two branches leave.

    Raises:
        ArgumentError: shows the difference by path.
    """
    before, after = first.outcome, second.outcome
    if before == after:
        trees = [jax.tree_util.tree_structure(result.plain) for result in (first, second)]
        if trees[0] == trees[1]:
            return
        found = f"{trees[1]} from {other}"
        expected = f"{trees[0]}, as from {title}"
    else:
        unchanged = tuple(graphdef for graphdef in gathered.structure.graphdefs if graphdef is not None)
        pairs = list(zip(before.arguments or unchanged, after.arguments or unchanged, strict=True))
        if before.output is not None and after.output is not None:
            outputs = zip(before.output.graphdefs, after.output.graphdefs, strict=False)
            pairs += [(x, y) for x, y in outputs if x is not None and y is not None]
        lines = [str(line) for x, y in pairs for line in diff(x, y)]
        found = "; ".join(lines) or f"other references, or another output, from {other} than from {title}"
        expected = f"the structure that {title} leaves"
    raise ArgumentError(
        f"{name}: {title} and {other} leave different structures (types, attributes or references)",
        found=found,
        expected=expected,
        do="make the same structural changes in every branch, and return outputs of one structure",
    )
