"""Axis names of variables: ``plait.spmd``."""

from __future__ import annotations

from ...core.graph.axes import PARTITION_NAME as PARTITION_NAME
from ...partitioning.axis_rules import (
    composite_rules as composite_rules,
    from_sharding_rules as from_sharding_rules,
    get_logical_axis_rules as get_logical_axis_rules,
    logical_axis_rules as logical_axis_rules,
    set_logical_axis_rules as set_logical_axis_rules,
)
from ...partitioning.initializers import with_partitioning as with_partitioning
from ...partitioning.layouts import (
    apply_rules as apply_rules,
    get_mesh as get_mesh,
    get_pspec as get_pspec,
    map_sharding as map_sharding,
    shard_value as shard_value,
)
from ...partitioning.shardings import (
    abstract_with_sharding as abstract_with_sharding,
    as_abstract as as_abstract,
    get_abstract_model as get_abstract_model,
)
from ...partitioning.specs import (
    get_named_sharding as get_named_sharding,
    get_partition_spec as get_partition_spec,
    get_var_pspec as get_var_pspec,
)
from ...partitioning.tree_axes import add_axis as add_axis, remove_axis as remove_axis

__all__ = sorted(name for name in globals() if not name.startswith("_") and name != "annotations")
__dir__ = __all__.copy
