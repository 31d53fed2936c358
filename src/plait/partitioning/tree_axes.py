"""Adding an axis to, and removing it from, the axis names of all variables of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.graph.axes import PARTITION_NAME, check_removable, drop_axis, put_axis
from ..core.nodes.nodes import iter_variables
from ..errors import PartitioningUnspecifiedError


def add_axis(tree: Any, index: int, transform_metadata: Mapping[str, Any]) -> None:
    """Insert the name of a new axis into every variable of a tree, in place.

    Args:
        tree: a module, variable, or pytree of them.
        index: position of the new axis; names are padded with ``None`` up to it.
        transform_metadata: ``{PARTITION_NAME: name}``; any other entry whose key is a tuple in a variable's metadata is
            inserted there in the same way.

    Raises:
        PartitioningUnspecifiedError: ``transform_metadata`` has no ``PARTITION_NAME``.

    Example:
        >>> v = plait.Param(jnp.ones((2, 3)), out_sharding=("in", "out"))
        >>> plait.spmd.add_axis(v, 0, {plait.PARTITION_NAME: "layers"})
        >>> v.out_sharding
        ('layers', 'in', 'out')
    """
    _check_axis_name(transform_metadata, "add_axis")
    for _, variable in iter_variables(tree):
        put_axis(variable, index, transform_metadata)


def remove_axis(tree: Any, index: int, transform_metadata: Mapping[str, Any]) -> None:
    """Remove the name of an axis from every variable of a tree, in place; the inverse of ``add_axis``.

    Raises:
        PartitioningUnspecifiedError: ``transform_metadata`` has no ``PARTITION_NAME``.
        AxisNameMismatchError: the axis at ``index`` has a different name, or none. Nothing is changed.

    Example:
        >>> v = plait.Param(jnp.ones((2, 3)), out_sharding=("in", "out"))
        >>> plait.spmd.remove_axis(v, 0, {plait.PARTITION_NAME: "in"})
        >>> v.out_sharding
        ('out',)
    """
    _check_axis_name(transform_metadata, "remove_axis")
    variables = [variable for _, variable in iter_variables(tree)]
    for variable in variables:
        check_removable(variable, index, transform_metadata)
    for variable in variables:
        drop_axis(variable, index, transform_metadata)


def _check_axis_name(metadata: Mapping[str, Any], function: str) -> None:
    if PARTITION_NAME not in metadata:
        raise PartitioningUnspecifiedError(
            f"{function} needs the name of the axis",
            found=f"{dict(metadata)!r}",
            expected=f"an entry {PARTITION_NAME!r}",
            do=f"pass {{plait.PARTITION_NAME: 'layers'}}, where the key is {PARTITION_NAME!r}; the name may be None",
        )
