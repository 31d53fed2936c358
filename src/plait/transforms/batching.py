"""``vmap`` and ``pmap``: a function of one example as a function of a batch, with modules whose state is stacked."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

from ..core.modes import graph_updates_mode
from ..errors import ArgumentError
from .crossing import check_function
from .lanes import Lifting, positional
from .prefixes import Prefix


def vmap(
    f: Any = None,
    /,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    transform_metadata: Mapping[str, Any] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.vmap`` for functions of modules.

    Inside, a mapped variable lacks the mapped axis; a variable with axis ``None`` is shared by the whole batch. Changes
    come back with the axis that the variable has: written variables, new ones, changed structure.

    Args:
        f: the function; without it ``vmap`` returns a decorator.
        in_axes: the axis of each argument: a prefix of the arguments, whose leaves are integers, ``None``, or for
            modules a ``StateAxes``. Keyword arguments take the position that the signature gives them.
        out_axes: the same for the output.
        axis_name, axis_size, spmd_axis_name: as in ``jax.vmap``.
        transform_metadata: ``{PARTITION_NAME: name}`` names the axis in the variables' axis names. Without it the
            axis keeps the name that the variable has for it, or gets ``None``; names always fit the rank.

    Raises:
        ArgumentError: axes that do not fit the arguments, an axis out of range, batch sizes that differ, or a variable
            under axis ``None`` that is given a value which depends on the example; each names the path.
        SharingError: a variable is reached under two axes.

    Example:
        >>> @plait.split_rngs(splits=5)
        ... @plait.vmap(in_axes=0, out_axes=0)
        ... def make(rngs):
        ...     return plait.Linear(2, 3, rngs=rngs)
        >>> model = make(plait.Rngs(0))
        >>> model.kernel.shape
        (5, 2, 3)
        >>> plait.vmap(lambda model, x: model(x), in_axes=(0, None))(model, jnp.ones(2)).shape
        (5, 3)
    """
    if f is None:
        return functools.partial(
            vmap,
            in_axes=in_axes,
            out_axes=out_axes,
            axis_name=axis_name,
            axis_size=axis_size,
            spmd_axis_name=spmd_axis_name,
            transform_metadata=transform_metadata,
            graph=graph,
            graph_updates=graph_updates,
        )
    check_function(f, "vmap")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = positional(f, args, kwargs)
        updates = graph_updates_mode(graph_updates)
        lifting = Lifting(
            "vmap",
            f,
            args,
            kwargs,
            Prefix.of("vmap", "in_axes", in_axes, updates=updates),
            Prefix.of("vmap", "out_axes", out_axes, updates=updates),
            graph=graph,
            graph_updates=graph_updates,
            axis_metadata=transform_metadata,
        )
        check_axes(lifting, axis_size)
        mapped = jax.vmap(
            lifting.passage,
            in_axes=(lifting.lanes,),
            out_axes=(lifting.lanes, 0),
            axis_name=axis_name,
            axis_size=axis_size,
            spmd_axis_name=spmd_axis_name,
        )
        outputs, report = mapped(lifting.inputs)
        return lifting.finish(outputs, report)

    return wrapper


def check_axes(lifting: Lifting, size: int | None = None) -> int | None:
    """Check every mapped input; returns the size of the mapped axis.

    Raises:
        ArgumentError: an input without the axis, or two sizes; names the paths.
    """
    name = lifting.passage.name
    first = None
    for label, axis, value in lifting.labelled():
        if not isinstance(axis, int):
            continue
        for leaf in jax.tree_util.tree_leaves(value):
            if not hasattr(leaf, "shape") and not isinstance(leaf, (bool, int, float, complex, np.generic)):
                raise ArgumentError(
                    f"{name}: something that is no array has a mapped axis",
                    at=label,
                    found=f"a {type(leaf).__name__}: {leaf!r:.60}",
                    expected=f"an array with axis {axis}",
                    do="give it the axis None, or pass an array",
                )
            shape = np.shape(leaf)
            if not -len(shape) <= axis < len(shape):
                raise ArgumentError(
                    f"{name}: axis {axis} is out of range",
                    at=label,
                    found=f"an array of shape {shape}",
                    expected=f"at least {axis + 1 if axis >= 0 else -axis} dimensions",
                    do="change the axis in in_axes (None: the whole array for every element), or pass a stacked array",
                )
            if first is None and size is not None:
                first = ("axis_size" if name != "scan" else "length", None, size)
            if first is None:
                first = (label, axis, shape[axis])
            elif shape[axis] != first[2]:
                place = first[0] if first[1] is None else f"axis {first[1]} of {first[0]}"
                raise ArgumentError(
                    f"{name}: the mapped axes have different sizes",
                    at=f"{place} and axis {axis} of {label}",
                    found=f"{first[2]} and {shape[axis]}",
                    expected="one size for all",
                    do="pass arrays of one batch, or None for what is not mapped",
                )
    return size if first is None else first[2]
