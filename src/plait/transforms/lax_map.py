"""``lax_map``: a sequential map over the leading axis, element by element or in batches. (rule X20)"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..core.functional.split import state
from ..core.graph.modes import Crossing
from ..core.graph.walks import is_graph_leaf
from ..core.nodes.nodes import iter_variables
from ..core.rngs import RngState
from ..core.transform import Transformation
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import Tree, Value
from ..util.paths import format_path
from ..util.static_values import HashableMapping
from .batching import check_axes, vmap
from .call.arguments import parameter_names
from .call.call import Call, check_function, prefixed_call
from .call.prefixes import Carry, StateAxes, prefix
from .loop_rules import LoopRules
from .loops import scan_ports
from .streams import split_rngs

LAX_MAP = Transformation(
    "lax_map",
    "{f}",
    "plait.lax_map(f, x, model), where f takes a row of x and the model",
    "also pass the module: plait.lax_map(lambda x, {module}: {module}.{method}(x), xs, {module})",
    new_variables="create the variable before the call, or return its value",
    loops=True,
)


R = TypeVar("R")


def lax_map(
    f: Callable[..., R],
    xs: Tree,
    *operands: Tree,
    batch_size: int | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """``jax.lax.map`` for functions of modules. (``plait.map`` is a function on the leaves of a model.)

    Args:
        f: ``(x, *operands) -> out``, called for each slice of ``xs`` in turn.
        xs: arrays, or modules with stacked state, along axis 0.
        operands: shared by all calls. A write to a module in one call is visible to the next.
        batch_size: the number of slices that run at once, under ``vmap``; 0 means all. Every slice draws different
            random numbers, from split keys. Slices of a batch run at the same time, so modules among the operands are
            read-only.
        graph, graph_updates: as in ``jit``.

    Returns:
        The outputs, stacked along axis 0.

    Raises:
        ArgumentError: sizes differ, an axis does not exist, the structure of an operand changes, or an operand is
            written with ``batch_size``; the message names the path.
        ArgumentTypeError: ``batch_size`` is not an integer of 0 or more, or a written value changes shape or dtype.

    Example:
        >>> calls = plait.Variable(jnp.zeros((), jnp.int32))
        >>> def f(x, calls):
        ...     calls[...] += 1
        ...     return x * calls[...]
        >>> plait.lax_map(f, jnp.ones(3, jnp.int32), calls).tolist(), int(calls[...])
        ([1, 2, 3], 3)
    """
    check_function(f, LAX_MAP)
    if batch_size is not None and (type(batch_size) is not int or batch_size < 0):
        raise ArgumentTypeError(
            "lax_map: batch_size is not a number of slices",
            at="batch_size",
            found=f"{batch_size!r:.80}",
            expected="an integer of 0 (all slices at once) or more, or None (one slice at a time)",
            do="pass, for example, batch_size=32",
        )
    # A batch keeps the axis of all slices.
    axis = HashableMapping({}) if batch_size is None else None
    carried = jax.tree_util.tree_map(
        lambda leaf: Carry if is_graph_leaf(leaf) else None, operands, is_leaf=is_graph_leaf
    )
    call = prefixed_call(
        LAX_MAP,
        f if batch_size is None else _batched(f, graph, graph_updates),
        (xs, *operands),
        {},
        {"xs and operands": (0, *carried), "the output": 0},
        Crossing(graph, graph_updates),
        kinds=(Carry,),
        rules=LoopRules(axis=axis),
    )
    size = check_axes(call)
    if batch_size is None:
        return call.finish(*scan_ports(call, call.inputs, size, {}))
    return _in_batches(call, size, batch_size)


def _in_batches(call: Call, size: int, batch_size: int) -> Tree:
    """Run full batches in a loop, then the remaining slices; with ``batch_size=0``, all of them."""
    port, carry = call.ports.kinds.index(0), call.ports.kinds.index(Carry)
    full = size // batch_size if batch_size else 0
    used = full * batch_size
    inputs: list[Value] = list(call.inputs)
    parts, outputs, outcome = [], inputs, None
    if full:
        inputs[port] = _each(lambda x: jnp.reshape(x[:used], (full, batch_size, *x.shape[1:])), call.inputs[port])
        outputs, outcome = scan_ports(call, inputs, full, {})
        parts.append(_each(lambda x: jnp.reshape(x, (used, *x.shape[2:])), outputs[port]))
        inputs[carry] = outputs[carry]  # the random streams have advanced
    if used < size or outcome is None:
        inputs[port] = _each(lambda x: x[used:], call.inputs[port])
        with call.in_scope():
            outputs, outcome = call.body(inputs)
        parts.append(outputs[port])
    outputs = list(outputs)
    outputs[port] = jax.tree_util.tree_map(lambda *each: jnp.concatenate(each), *parts) if len(parts) > 1 else parts[0]
    return call.finish(outputs, outcome)


def _each(f: Callable[[Tree], Tree], values: Sequence[Value]) -> list[Value]:
    return jax.tree_util.tree_map(lambda x: f(jnp.asarray(x)), list(values))


def _batched(f: Callable[..., Tree], graph: bool | None, graph_updates: bool | None) -> Callable[..., Tree]:
    """``f`` of a batch of slices; the streams of the operands are split during the call."""

    @functools.wraps(f)
    def one(x: Tree, *operands: Tree) -> Tree:
        before = [
            (path, variable, variable._cell.raw)
            for path, variable in iter_variables(operands)
            if not isinstance(variable, RngState)
        ]
        out = f(x, *operands)
        for (number, *path), variable, old in before:
            if variable._cell.raw is not old:
                name = parameter_names(f).at(1 + number)
                raise ArgumentError(
                    "lax_map with batch_size: a variable of an operand was written",
                    at=format_path((name, *path)),
                    found=f"a new value for a {type(variable).__name__}, from slices that run at the same time",
                    expected="operands that are only read, since slices of one batch have no order",
                    do="omit batch_size, or return the new value and write it after the call",
                )
        return out

    def axes_of(operand: Tree) -> Tree:
        if not is_graph_leaf(operand):
            return None
        axes = {RngState: 0, ...: None}
        return StateAxes(axes) if Crossing(graph, graph_updates).updates else prefix(operand, axes, graph=True)

    @functools.wraps(f)
    def batch(x: Tree, *operands: Tree) -> Tree:
        size = jnp.shape(jax.tree_util.tree_leaves(state(x, graph=True))[0])[0]

        def with_streams(*operands: Tree) -> Tree:
            axes = jax.tree_util.tree_map(axes_of, operands, is_leaf=is_graph_leaf)
            return vmap(one, in_axes=(0, *axes), graph=graph, graph_updates=graph_updates)(x, *operands)

        return split_rngs(with_streams, splits=size, graph=graph, graph_updates=graph_updates)(*operands)

    return batch
