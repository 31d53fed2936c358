"""The names of a mapped axis, which variables have outside and not inside; and ``transform_metadata``, which names the
axis on the function instead of on the transform. (rule X27)

plait's ``vmap``, ``pmap`` and ``scan`` read the name from the function and treat it like
``transform_metadata={PARTITION_NAME: name}``. Under any other transform the function itself removes the name from its
arguments' metadata and restores it afterwards.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..core.graph.axes import PARTITION_NAME, drop_axis, has_axis_metadata, put_axis
from ..core.graph.modes import STRUCTURE, Crossing
from ..core.graph.walks import is_graph_leaf
from ..core.nodes.nodes import iter_variables
from ..core.transform import Transformation
from ..core.variables.variables import Variable
from ..errors import ArgumentError, AxisNameMismatchError, PartitioningUnspecifiedError
from ..typing import Tree, Value
from ..util.context_values import held
from ..util.static_values import HashableMapping
from .call.arguments import joined, parameter_names, positional
from .call.body import Body, Rules
from .call.call import check_function, curried, prefixes_of
from .call.enter_leave import TracedArguments, TracedResult
from .call.prefixes import Prefix, choose

METADATA = Transformation("transform_metadata", "plait.transform_metadata({f}, partition='layers')")


_NAME = "_plait_axis_name"
# Whether the transform of the running function handles the names.
_handled: contextvars.ContextVar[bool] = contextvars.ContextVar("plait_axis_names_handled", default=False)


@dataclasses.dataclass(frozen=True)
class AxisNames(Rules):
    """The rules of a transform that removes an axis inside: names of axes in metadata follow it."""

    def run(self, body: Body, entered: TracedArguments, call: Callable[[], Tree]) -> Tree:
        if self.axis is None:
            return call()
        variables = entered.variables()
        dropped = self._drop_axes(body, entered, variables)
        out = call()
        for position, names in dropped.items():
            axis: Any = body.ports.of(position)
            self._put_axis(variables[position], axis, names)
        return out

    def finish_new(self, body: Body, left: TracedResult, out: Tree) -> bool:
        """Add the axis to the names of the variables that the function made."""
        if self.axis is None:
            return False
        new = [
            (number, leaf)
            for number, leaf in enumerate(left.walk.leaves)
            if isinstance(leaf, Variable) and left.position(number) is None and has_axis_metadata(leaf, self.axis)
        ]
        if not new:
            return False
        prefixes = (*body.prefixes, *itertools.compress(body.outs.broadcast(out), map(is_graph_leaf, left.leaves)))
        axes = [(leaf, left.prefix(number, prefixes)) for number, leaf in new]
        for leaf, axis in axes:
            if isinstance(axis, int):
                self._put_axis(leaf, axis, None)
        return True

    def _drop_axes(
        self, body: Body, entered: TracedArguments, variables: Sequence[Variable[Value]]
    ) -> dict[int, Mapping[str, object]]:
        """Remove the axis that does not exist inside from the names of each variable; position → what was removed."""
        dropped: dict[int, Mapping[str, object]] = {}
        assert self.axis is not None
        for position, variable in enumerate(variables):
            axis = body.ports.of(position)
            if variable is not None and isinstance(axis, int) and has_axis_metadata(variable, self.axis):
                rank = np.ndim(entered.values[position]) + 1
                try:
                    dropped[position] = drop_axis(variable, axis % rank, self.axis)
                except AxisNameMismatchError as error:
                    parts = {**error.parts, "at": f"{body.value_labels()[position]}, {error.parts['at']}"}
                    raise AxisNameMismatchError(f"{body.name}: {error.message}", **parts) from None
        return dropped

    def _put_axis(self, variable: Variable[Value], axis: int, dropped: Mapping[str, object] | None) -> None:
        assert self.axis is not None
        put_axis(variable, axis % (np.ndim(variable._cell.raw) + 1), self.axis, dropped)

    def check_sent(self, body: Body, kind: Hashable, value: Value) -> None:
        """Raise if an output cannot have this axis.

        Raises:
            ArgumentError: names the axis and the shape.
        """
        if self.axis is None or not isinstance(kind, int):
            return
        for leaf in jax.tree_util.tree_leaves(value):
            rank = np.ndim(leaf) + 1
            if not -rank <= kind < rank:
                raise ArgumentError(
                    f"{body.name}: axis {kind} of the output is out of range",
                    at="out_axes",
                    found=f"an output of shape {np.shape(leaf)} in one call",
                    expected=f"an axis from {-rank} to {rank - 1}",
                    do=f"change the axis in out_axes, for example to {0 if kind >= 0 else -1}",
                )


@curried
def transform_metadata(
    f: Any = None,
    *,
    in_axes: Tree = 0,
    out_axes: Tree = 0,
    partition: str | None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """Name the axis that ``vmap``, ``pmap`` or ``scan`` maps; apply it directly inside them.

    Inside ``f``, the variables' axis names do not include ``partition``. Afterwards it is restored, and added to
    variables that ``f`` created. ``plait.vmap(plait.transform_metadata(f, partition="layers"))`` does what
    ``plait.vmap(f, transform_metadata={plait.PARTITION_NAME: "layers"})`` does, with the axes of ``vmap``.

    Args:
        f: the function; without it ``transform_metadata`` returns a decorator.
        in_axes, out_axes: the position of the axis in each argument and in the output, as in ``vmap``; needed only
            inside a transform that is not plait's, such as ``jax.vmap`` of a function of states.
        partition: the name of the axis.
        graph, graph_updates: as in ``jit``.

    Raises:
        AxisNameMismatchError: a variable has a different name for the axis; nothing is changed.

    Example:
        >>> @plait.vmap(axis_size=4, in_axes=None)
        ... @plait.transform_metadata(partition="layers")
        ... def make(key):
        ...     return plait.Param(jnp.ones((2, 3)), out_sharding=("in", "out"))
        >>> make(0).out_sharding
        ('layers', 'in', 'out')
    """
    check_function(f, METADATA)
    metadata = {PARTITION_NAME: partition}

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Tree:
        if _handled.get():
            with held(_handled, False):
                return f(*args, **kwargs)
        args, kwargs = positional(f, args, kwargs)
        ins, outs = prefixes_of(METADATA, {"in_axes": in_axes, "out_axes": out_axes}, STRUCTURE)
        Crossing(graph).check(args, lambda path: joined(parameter_names(f).at(int(path[0])), path[1:]))
        return _run_without_names(f, args, kwargs, ins, outs, metadata)

    setattr(wrapper, _NAME, partition)
    return wrapper


def read_axis_name(
    f: Callable[..., Tree], metadata: Mapping[str, object]
) -> tuple[Callable[..., Tree], HashableMapping[str, object]]:
    """The function that a transform maps, and its axis metadata, including ``transform_metadata`` on the function.

    Raises:
        PartitioningUnspecifiedError: there is metadata for the axis, but no name.
    """
    if _NAME not in getattr(f, "__dict__", {}):
        if metadata and PARTITION_NAME not in metadata:
            raise PartitioningUnspecifiedError(
                "transform_metadata describes an axis without naming it",
                found=f"{dict(metadata)!r}",
                expected=f"an entry {PARTITION_NAME!r}",
                do="name it: transform_metadata={plait.PARTITION_NAME: 'layers'}, or None for an axis without a name",
            )
        return f, HashableMapping(metadata)

    @functools.wraps(f)
    def inner(*args: Any, **kwargs: Any) -> Tree:
        with held(_handled, True):
            return f(*args, **kwargs)

    delattr(inner, _NAME)  # otherwise the next transform around this one would use the same name
    return inner, HashableMapping({**metadata, PARTITION_NAME: f.__dict__[_NAME]})


def _run_without_names(
    f: Callable[..., Tree],
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    ins: Prefix,
    outs: Prefix,
    metadata: Mapping[str, object],
) -> Tree:
    dropped: list[tuple[Variable[Value], int, Mapping[str, object]]] = []
    try:
        before = list(_variables(args, ins))
        for variable, axis in before:
            if isinstance(axis, int):
                dropped.append((variable, axis, drop_axis(variable, axis, metadata)))
        out = f(*args, **kwargs)
        known = {id(variable) for variable, _ in before}
        for variable, axis in [*_variables(args, ins), *_variables(out, outs)]:
            if id(variable) not in known and isinstance(axis, int):
                known.add(id(variable))
                put_axis(variable, axis, metadata)
        return out
    finally:
        for variable, axis, names in dropped:
            put_axis(variable, axis, metadata, names)


def _variables(tree: Tree, prefix: Prefix) -> Iterator[tuple[Variable[Value], Any]]:
    """The variables of a tree, each once, with its axis."""
    leaves, spread = jax.tree_util.tree_leaves(tree, is_leaf=is_graph_leaf), prefix.broadcast(tree)
    for (number, *path), variable in iter_variables(leaves):
        yield variable, choose(spread[number], [(tuple(path), variable)])[0]
