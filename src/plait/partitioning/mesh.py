"""The mesh that is in force, and putting a value on it. (rules M15, M16, V39)"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .._compat import Tracer
from ..errors import ArgumentError


def get_global_mesh() -> AbstractMesh | None:
    """The mesh that ``jax.set_mesh`` has put in force, without its devices; ``None`` if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh is None or mesh.empty else mesh


def global_mesh_defined() -> bool:
    """Whether a mesh is in force."""
    return get_global_mesh() is not None


def place(value: Any, spec: PartitionSpec, mesh: Mesh | AbstractMesh | None, what: str) -> Any:
    """A value laid out on a mesh: moved if it is an array, constrained if it is being traced.

    Args:
        mesh: by default the mesh in force; without one the value is returned as it is.
        what: whose value it is, for errors.

    Raises:
        ArgumentError: the spec names an axis that the mesh does not have or has more entries than the value has axes,
            or the mesh mixes kinds of axes.
    """
    if not hasattr(value, "ndim") or not hasattr(value, "dtype"):
        return value
    abstract = get_global_mesh() if mesh is None else mesh
    if abstract is None or abstract.empty:
        return value
    check_spec(spec, abstract, value, what)
    kinds = set(abstract.axis_types)
    if len(kinds) > 1:
        raise ArgumentError(
            "a mesh whose axes are of different kinds cannot lay out a variable by its names",
            at=what,
            found=f"axis types {dict(zip(abstract.axis_names, abstract.axis_types, strict=True))}",
            expected="all Explicit, or all Auto",
            do="make the mesh with one kind of axes, or place the value yourself",
        )
    if isinstance(value, Tracer):
        sharding = NamedSharding(abstract, spec)
        if kinds == {AxisType.Explicit}:
            return jax.sharding.reshard(value, sharding)
        return jax.lax.with_sharding_constraint(value, sharding)
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    concrete = abstract if isinstance(abstract, Mesh) else jax.sharding.get_mesh()
    if not isinstance(concrete, Mesh) or concrete.empty:
        return value  # an abstract mesh has no devices to move to
    return jax.device_put(value, NamedSharding(concrete, spec))


def check_spec(spec: PartitionSpec, mesh: Any, value: Any, what: str) -> None:
    """Refuse a spec that a mesh cannot follow.

    Raises:
        ArgumentError: names the axis, and what there is.
    """
    names = [name for entry in spec for name in (entry if isinstance(entry, tuple) else (entry,))]
    unknown = [name for name in names if isinstance(name, str) and name not in mesh.axis_names]
    if unknown:
        from .axis_rules import get_logical_axis_rules

        raise ArgumentError(
            "a variable names an axis that the mesh does not have",
            at=what,
            found=f"{', '.join(map(repr, unknown))} in {spec}, with the rules {list(get_logical_axis_rules())}",
            expected=f"axes of the mesh: {tuple(mesh.axis_names)}",
            do=f"add a rule: plait.logical_axis_rules([({unknown[0]!r}, mesh axis or None), ...])",
        )
    if len(spec) > value.ndim:
        raise ArgumentError(
            "a variable has more axis names than its array has axes",
            at=what,
            found=f"{spec} for shape {tuple(value.shape)}",
            expected=f"at most {value.ndim} names",
            do="give one name, or None, for each axis",
        )
