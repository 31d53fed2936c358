"""``transform_metadata``: names a mapped axis on the function instead of on the transform. (rule X27)

plait's ``vmap``, ``pmap`` and ``scan`` read the name from the function and treat it like
``transform_metadata={PARTITION_NAME: name}``. Under any other transform the function itself removes the name from its
arguments' metadata and restores it afterwards.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from ..core.graph.axes import PARTITION_NAME, drop_axis, put_axis
from ..core.graph.walks import is_graph_leaf
from ..core.nodes.nodes import iter_variables
from ..core.transform import Transformation
from ..core.variables.variables import Variable
from ..errors import PartitioningUnspecifiedError
from ..util.context_values import held
from .call.arguments import parameter_names, positional
from .call.call import STRUCTURE, Crossing, check_function, curried, prefixes_of
from .call.prefixes import Prefix, choose

METADATA = Transformation("transform_metadata", "plait.transform_metadata({f}, partition='layers')")


_NAME = "_plait_axis_name"
# Whether the transform of the running function handles the names.
_handled: contextvars.ContextVar[bool] = contextvars.ContextVar("plait_axis_names_handled", default=False)


@curried
def transform_metadata(
    f: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
    crossing: Crossing = STRUCTURE,
) -> Any:
    """Name the axis that ``vmap``, ``pmap`` or ``scan`` maps; apply it directly inside them.

    Inside ``f``, the variables' axis names do not include ``partition``. Afterwards it is restored, and added to
    variables that ``f`` created. ``plait.vmap(plait.transform_metadata(f, partition="layers"))`` does what
    ``plait.vmap(f, transform_metadata={plait.PARTITION_NAME: "layers"})`` does, with the axes of ``vmap``.

    Args:
        f: the function; without it ``transform_metadata`` returns a decorator.
        in_axes, out_axes: the position of the axis in each argument and in the output, as in ``vmap``; needed only
            inside a transform that is not plait's, such as ``jax.vmap`` of a function of states.
        partition: the name of the axis.

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
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _handled.get():
            with held(_handled, False):
                return f(*args, **kwargs)
        args, kwargs = positional(f, args, kwargs)
        ins, outs = prefixes_of(METADATA, {"in_axes": in_axes, "out_axes": out_axes}, STRUCTURE)
        crossing.check(args, lambda: [*map(parameter_names(f).at, range(len(args)))])
        return _run_without_names(f, args, kwargs, ins, outs, metadata)

    setattr(wrapper, _NAME, partition)
    return wrapper


def read_axis_name(f: Callable[..., Any], metadata: Mapping[str, Any]) -> tuple[Callable[..., Any], Mapping[str, Any]]:
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
        return f, metadata

    @functools.wraps(f)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with held(_handled, True):
            return f(*args, **kwargs)

    delattr(inner, _NAME)  # otherwise the next transform around this one would use the same name
    return inner, {**metadata, PARTITION_NAME: f.__dict__[_NAME]}


def _run_without_names(
    f: Callable[..., Any], args: Any, kwargs: Any, ins: Prefix, outs: Prefix, metadata: Mapping[str, Any]
) -> Any:
    dropped: list[tuple[Variable[Any], int, Any]] = []
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


def _variables(tree: Any, prefix: Prefix) -> Iterator[tuple[Variable[Any], Any]]:
    """The variables of a tree, each once, with its axis."""
    leaves, spread = jax.tree_util.tree_leaves(tree, is_leaf=is_graph_leaf), prefix.broadcast(tree)
    for (number, *path), variable in iter_variables(leaves):
        yield variable, choose(spread[number], [(tuple(path), variable)])[0]
