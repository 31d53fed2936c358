"""Axis names of variables. Public as ``plait.spmd``, with the related functions of other files.

The functions here resolve one layout in any form of a variable's ``out_sharding``: a tuple of names, a
``PartitionSpec``, a ``NamedSharding`` or a ``Format``.
"""

# Rule V37 to v41, m25, m26, m30.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..core.graph.axes import PARTITION_NAME as PARTITION_NAME
from ..partitioning.axis_rules import (
    Rules,
    composite_rules as composite_rules,
    from_sharding_rules as from_sharding_rules,
    get_logical_axis_rules as get_logical_axis_rules,
    logical_axis_rules as logical_axis_rules,
    set_logical_axis_rules as set_logical_axis_rules,
)
from ..partitioning.initializers import with_partitioning as with_partitioning
from ..partitioning.mesh import place_by_spec
from ..partitioning.specs import (
    get_named_sharding as get_named_sharding,
    get_partition_spec as get_partition_spec,
    get_var_pspec as get_var_pspec,
    without_format,
)
from ..partitioning.tree_axes import add_axis as add_axis, remove_axis as remove_axis
from .functions import (
    abstract_with_sharding as abstract_with_sharding,
    as_abstract as as_abstract,
    get_abstract_model as get_abstract_model,
)

__all__ = [
    "PARTITION_NAME",
    "abstract_with_sharding",
    "add_axis",
    "apply_rules",
    "as_abstract",
    "composite_rules",
    "from_sharding_rules",
    "get_abstract_model",
    "get_logical_axis_rules",
    "get_mesh",
    "get_named_sharding",
    "get_partition_spec",
    "get_pspec",
    "get_var_pspec",
    "logical_axis_rules",
    "map_sharding",
    "remove_axis",
    "set_logical_axis_rules",
    "shard_value",
    "with_partitioning",
]


def map_sharding(f: Callable[[Any], Any], sharding: Any) -> Any:
    """A layout with ``f`` applied to the name of each axis; a tuple of names becomes a ``PartitionSpec``.

    Example:
        >>> plait.spmd.map_sharding(lambda name: name and name.upper(), ("x", None))
        P('X', None)
    """
    return _map_names(lambda names: tuple(map(f, names)), sharding)


def apply_rules(sharding: Any, sharding_rules: Rules) -> Any:
    """A layout with each name that has a rule replaced by its target.

    Example:
        >>> plait.spmd.apply_rules(("embed", "mlp"), [("mlp", "model")])
        P('embed', 'model')
    """
    return _map_names(lambda names: from_sharding_rules(names, sharding_rules), sharding)


def get_pspec(sharding: Any, sharding_rules: Rules | None = None) -> Any:
    """A layout with the rules of the thread, and those given, applied to its names; ``None`` for none.

    Raises:
        ArgumentError: the two sets of rules contradict each other.

    Example:
        >>> with plait.logical_axis_rules([("embed", "data")]):
        ...     plait.spmd.get_pspec(("embed", "mlp"), [("mlp", "model")])
        P('data', 'model')
    """
    return apply_rules(sharding, composite_rules(get_logical_axis_rules(), sharding_rules or ()))


def get_mesh(sharding: Any) -> Any:
    """The mesh of a layout; ``None`` for names and specs."""
    sharding = without_format(sharding)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def shard_value(value: Any, out_sharding: Any, sharding_rules: Rules | None, mesh: Any) -> Any:
    """A value laid out as a variable with this metadata would be.

    Args:
        value: an array.
        out_sharding: the layout; empty or ``None`` leaves the value unchanged.
        sharding_rules: rules of the variable, in addition to those of the thread.
        mesh: ``None`` means the mesh of the layout, or the current one; without a mesh the value is unchanged.

    Raises:
        ArgumentError: the layout does not fit the mesh or the value.
    """
    if not out_sharding:
        return value
    mesh = get_mesh(out_sharding) if mesh is None else mesh
    found = without_format(get_pspec(out_sharding, sharding_rules))
    if isinstance(found, Sharding) and not isinstance(found, NamedSharding):
        return jax.device_put(value, found)
    spec = found.spec if isinstance(found, NamedSharding) else found
    return place_by_spec(value, spec, mesh, "a value", names=out_sharding)


def _map_names(f: Callable[[Any], Any], sharding: Any) -> Any:
    if isinstance(sharding, (tuple, list, PartitionSpec)):
        return PartitionSpec(*f(tuple(sharding)))
    if isinstance(sharding, NamedSharding):
        return sharding.update(spec=PartitionSpec(*f(tuple(sharding.spec))))
    if hasattr(sharding, "layout"):
        return type(sharding)(sharding.layout, _map_names(f, sharding.sharding))
    return sharding
