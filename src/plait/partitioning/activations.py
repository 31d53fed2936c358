"""Layouts of activations, by the same names and rules as those of variables."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from .axis_rules import get_logical_axis_rules
from .mesh import fitted_spec, get_global_mesh, in_manual_mode, place_by_spec
from .specs import spec_of_names


def with_sharding_constraint(x: Any, names: Any, mesh: Any = None) -> Any:
    """Shard an activation by the names of its axes: a constraint on a mesh with automatic axes, a transfer otherwise.

    Args:
        x: an array, or a pytree of arrays with the same layout.
        names: for each axis a name (logical, or of the mesh), a tuple of names, or ``None``; or a ``PartitionSpec``.
        mesh: ``None`` means the current mesh. Without a mesh, and inside ``shard_map`` or ``pmap``, ``x`` is returned
            unchanged.

    Raises:
        ArgumentError: a name is neither in the rules nor in the mesh, a mesh axis is repeated, or there are more names
            than axes.

    Warns:
        UnevenLayoutWarning: the mesh does not divide a length, which is replicated.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with jax.set_mesh(mesh), plait.logical_axis_rules([("batch", "data")]):
        ...     plait.with_sharding_constraint(jnp.ones((16, 4)), ("batch", None)).sharding.spec
        P('data', None)
    """
    mesh = get_global_mesh() if mesh is None else mesh
    if names is None or mesh is None or mesh.empty or in_manual_mode():
        return x
    spec = spec_of_names(names, get_logical_axis_rules(), "an activation")
    what = f"an activation with axes {names}"
    return jax.tree_util.tree_map(lambda leaf: place_by_spec(leaf, spec, mesh, what, names=names), x)


def out_sharding(*names: Any, shape: tuple[int, ...] | None = None) -> PartitionSpec | None:
    """The value of a layer's ``out_sharding`` for these names: a spec if the axes of the mesh are explicit.

    Otherwise ``None``: on a mesh with automatic axes the compiler decides, and without a mesh nothing is sharded.

    Args:
        *names: for each axis of the layer's output a name (logical, or of the mesh), a tuple of names, or ``None``.
        shape: that of the output. An axis whose length the mesh does not divide is replicated, as an axis of a variable
            is, with the same warning; without it, the layer raises JAX's error then.

    Example:
        >>> mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Explicit,))
        >>> with jax.set_mesh(mesh), plait.logical_axis_rules([("batch", None), ("mlp", "model")]):
        ...     plait.partitioning.out_sharding("batch", "mlp")
        P(None, 'model')
    """
    mesh = get_global_mesh()
    if mesh is None or set(mesh.axis_types) != {AxisType.Explicit}:
        return None
    spec = spec_of_names(names, get_logical_axis_rules(), "an activation")
    return spec if shape is None else fitted_spec(spec, mesh, shape, f"an activation with axes {names}", names=names)
