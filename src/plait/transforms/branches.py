"""``cond`` and ``switch``: one of several functions, chosen at run time, whose operands may be modules.

Every branch returns the values of all its input variables, changed or not, so that the outputs match; JAX removes those
that no branch changes. Everything else must be the same in all branches. (rules X22, U29)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import jax

from ..core.graph.diff import diff
from ..core.graph.graphdef import NodeRef
from ..core.graph.modes import Crossing
from ..core.transform import Transformation
from ..errors import ArgumentError, ArgumentTypeError, PlaitError
from ..typing import Tree, Value
from .call.arguments import Structure, joined
from .call.body import Body, OfBody, Propagation
from .call.call import Call, check_function
from .call.outcome import Address, Outcome, Traces

COND = Transformation("cond", "{f}", "plait.cond(pred, f, g, model, x)", copies_captured=True, has_outputs=False)
SWITCH = Transformation(
    "switch", "{f}", "plait.switch(index, [f, g], model, x)", copies_captured=True, has_outputs=False
)


R = TypeVar("R")


def cond(
    pred: Value,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    *operands: Tree,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """``jax.lax.cond`` for functions of modules.

    Args:
        pred: boolean scalar.
        true_fun, false_fun: functions of the operands that return outputs of the same structure.
        *operands: arrays, modules and pytrees of them. Changes by the chosen branch are kept.
        graph, graph_updates: as in ``jit``.

    Returns:
        The output of the chosen function.

    Raises:
        ArgumentError: the branches produce or return different structures; the message shows the difference by path.

    Example:
        >>> count = plait.Variable(jnp.zeros(()))
        >>> def up(count):
        ...     count[...] += 1
        >>> plait.cond(True, up, lambda count: None, count)
        >>> float(count[...])
        1.0
    """
    return _choose(COND, pred, (true_fun, false_fun), operands, Crossing(graph, graph_updates))


def switch(
    index: Value,
    branches: Sequence[Callable[..., R]],
    *operands: Tree,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """``jax.lax.switch`` for functions of modules.

    Args:
        index: integer scalar; clamped to the number of branches.
        branches: functions of the operands that return outputs of the same structure.
        *operands: arrays, modules and pytrees of them. Changes by the chosen branch are kept.
        graph, graph_updates: as in ``jit``.

    Returns:
        The output of the chosen function.

    Raises:
        ArgumentError: there is no branch, or two branches produce or return different structures.

    Example:
        >>> scale = plait.Variable(jnp.float32(3))
        >>> float(plait.switch(1, [lambda s: s[...], lambda s: s[...] * 2], scale))
        6.0
    """
    return _choose(SWITCH, index, tuple(branches), operands, Crossing(graph, graph_updates))


def _choose(
    name: Transformation,
    index: Value,
    branches: tuple[Callable[..., Tree], ...],
    operands: tuple[Tree, ...],
    crossing: Crossing,
) -> Tree:
    for branch in branches:
        check_function(branch, name)
    if not branches:
        raise ArgumentError(
            f"{name} needs a branch",
            found="an empty sequence",
            expected="at least one function",
            do=f"pass the branches as a sequence: plait.{name}(index, [f, g], x)",
        )
    calls = [Call(name, f, operands, crossing=crossing, propagation=Propagation(all_values=True)) for f in branches]
    kept = [call.cached("branch", _Branch) for call in calls]
    try:
        chosen = kept if name is COND else [kept]
        choose = getattr(jax.lax, name)
        outputs, outcome = calls[0].run(choose, index, *chosen, calls[0].inputs, others=calls[1:])
    except PlaitError:
        raise
    except TypeError:
        _explain(kept, branches, calls[0].inputs[0])
        raise
    seen = [branch.traces.of(calls[0].inputs[0]) for branch in kept]
    written = {position for known in seen if known is not None for position, _ in known[0].written}
    return calls[0].finish(outputs, outcome.with_written(written))


class _Branch(OfBody):
    """A branch as a function of its inputs.

    Attributes:
        traces: of each trace its outcome, and the types of its outputs.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.traces: Traces[tuple[Outcome, tuple[Any, ...]]] = Traces()

    def __call__(self, inputs: Any) -> Tree:
        outputs, outcome = self.body(inputs)
        self.traces.add(inputs[0], (outcome, self.traces.types(outputs[0])))
        return outputs, outcome.ignoring_writes()

    def names(self) -> tuple[Tree, ...]:
        return self.body.names()


def _explain(kept: Sequence[_Branch], branches: tuple[Callable[..., Tree], ...], inputs: Sequence[Value]) -> None:
    """Raise an error that shows how two branches differ for these inputs."""
    names = [getattr(branch, "__name__", "") for branch in branches]
    titles = [f"branch {number}" + (f" ({name})" if name else "") for number, name in enumerate(names)]
    mine, *others = (branch.traces.of(inputs) for branch in kept)
    for title, other in zip(titles[1:], others, strict=True):
        if mine is not None and other is not None:
            _check_alike(kept[0].body, mine, other, [titles[0], title])


def _check_alike(body: Body, mine: Any, other: Any, titles: list[str]) -> None:
    """Raise if branches produce different structures, or different shapes or dtypes at the same position.

    Raises:
        ArgumentError: shows what differs.
        ArgumentTypeError: names the path, and both types.
    """
    if mine[0].ignoring_writes() != other[0].ignoring_writes():
        _raise_different(body, mine[0], other[0], titles)
    for place, (types, others) in enumerate(zip(mine[1], other[1], strict=True)):
        if types != others:
            raise ArgumentTypeError(
                f"{body.name}: {titles[0]} and {titles[1]} write or return values of different types",
                at=mine[0].describe(Address(0, place), body.structure, body.root_labels()),
                found=f"{_show_types(others)} from {titles[1]}",
                expected=f"{_show_types(types)}, as from {titles[0]}",
                do="use the same shape and dtype in every branch, for example with .astype(...)",
            )


def _show_types(types: tuple[Any, ...]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types) or "nothing"


def _raise_different(body: Body, before: Outcome, after: Outcome, titles: list[str]) -> NoReturn:
    """Raise an error that shows, by path, how the results of two branches differ."""
    labels, outcomes = body.labels()[0], (before, after)
    roots = [outcome.arguments or body.structure.roots for outcome in outcomes]
    lines = [(label, str(line)) for label, *pair in zip(labels, *roots, strict=True) for line in diff(*pair)]
    at: str | None = ", ".join(dict.fromkeys(label for label, _ in lines)) or None
    found, expected = "; ".join(line for _, line in lines), f"the same structure as {titles[0]}"
    do = "make the same structural changes and return outputs of the same structure in every branch"
    outputs = [outcome.output for outcome in outcomes if outcome.output is not None]
    if not lines and outputs[0].treedef != outputs[1].treedef:
        found, expected = (
            f"{output.treedef}{how} {title}"
            for output, how, title in zip(outputs[::-1], (" from", ", as from"), titles[::-1], strict=True)
        )
        do = "return outputs of the same structure from every branch"
    elif not lines:
        places = [f"the output{jax.tree_util.keystr(path)}" for path in outputs[0].places()]
        for place, mine, other in zip(places, outputs[0].graphdefs, outputs[1].graphdefs, strict=True):
            if mine is other or (mine == other and not isinstance(mine, NodeRef)):
                continue
            at, do = place, "return modules of the same class, with the same static attributes, from every branch"
            if mine is not None and other is not None and not isinstance(mine, NodeRef) and type(mine) is type(other):
                found = "; ".join(map(str, diff(mine, other)))
                expected = f"the module that {titles[0]} returns"
            else:
                names = [_describe(body, outcome, part) for outcome, part in zip(outcomes, (mine, other), strict=True)]
                found, expected = f"{names[1]} from {titles[1]}", f"{names[0]}, as from {titles[0]}"
            if isinstance(mine, NodeRef) or isinstance(other, NodeRef):
                do = (
                    "return values, `return plait.state(model)` or `return variable[...]`, and put them where they "
                    "belong after the call: plait.update(model, state)"
                )
            break
    raise ArgumentError(
        f"{body.name}: {titles[0]} and {titles[1]} produce different structures (types, attributes or references)",
        at=at,
        found=found or f"different references from {titles[1]}",
        expected=expected,
        do=do,
    )


def _describe(body: Body, outcome: Outcome, part: Any) -> str:
    """The text for an object of the output: ``model.encoder`` for an input, or ``a new Linear``."""
    if part is None:
        return "no module"
    labels = body.labels()[0]
    for number, path, known in Structure(None, outcome.arguments or body.structure.roots).part_paths():
        if not isinstance(known, NodeRef) and getattr(known, "index", None) == part.index:
            return joined(labels[number], path)
    return f"a new {part.type.__name__}"
