"""The current mesh, and putting a value on it. (rules M15, M16, V39)"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..errors import ArgumentError, UnevenLayoutWarning
from ..util.jax_versions import Tracer, current_trace, top_level_trace
from ..util.notices import warn
from .axis_rules import get_logical_axis_rules


def get_global_mesh() -> AbstractMesh | None:
    """The mesh that ``jax.set_mesh`` set, without its devices; ``None`` if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh is None or mesh.empty else mesh


def in_manual_mode() -> bool:
    """Whether the running function sees one device's share of its arrays, as under ``shard_map`` and ``pmap``."""
    return AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types


def global_mesh_defined() -> bool:
    """Whether there is a current mesh."""
    return get_global_mesh() is not None


def place(value: Any, sharding: NamedSharding, what: str) -> Any:
    """A value laid out on a mesh: moved if it is an array, constrained if it is traced.

    Args:
        sharding: on the current mesh, or with a mesh of its own.
        what: whose value it is, for errors.

    Raises:
        ArgumentError: the mesh mixes kinds of axes.
    """
    mesh = sharding.mesh
    kinds = set(mesh.axis_types)
    if len(kinds) > 1:
        raise ArgumentError(
            "a mesh with different kinds of axes cannot shard a variable by its names",
            at=what,
            found=f"axis types {dict(zip(mesh.axis_names, mesh.axis_types, strict=True))}",
            expected="all Explicit, or all Auto",
            do="make the mesh with one kind of axes, or place the value yourself",
        )
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    # A constant in a trace cannot be moved; it gets a constraint, as traced values do.
    if isinstance(value, Tracer) or current_trace() is not top_level_trace:
        explicit = kinds == {AxisType.Explicit}
        return jax.sharding.reshard(value, sharding) if explicit else jax.lax.with_sharding_constraint(value, sharding)
    concrete = mesh if isinstance(mesh, Mesh) else jax.sharding.get_mesh()
    if concrete.empty:
        return value  # an abstract mesh has no devices to move to
    return jax.device_put(value, NamedSharding(concrete, sharding.spec))


def place_by_spec(value: Any, spec: PartitionSpec, mesh: Any, what: str, *, names: Any = None) -> Any:
    """A value laid out by a spec on ``mesh``, or on the current mesh; unchanged without one.

    Args:
        what: whose value it is, for errors.
        names: the names that the spec was made from, as in ``check_spec``.

    Raises:
        ArgumentError: the spec does not fit the mesh or the value, or the mesh mixes kinds of axes.
    """
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None or mesh.empty or not hasattr(value, "shape"):
        return value
    return place(value, NamedSharding(mesh, fitted_spec(spec, mesh, value.shape, what, names=names)), what)


def fitted_spec(
    spec: PartitionSpec, mesh: Any, shape: tuple[int, ...], what: str, *, names: Any = None
) -> PartitionSpec:
    """A spec of names for an array of this shape on a mesh; dimensions that the mesh does not divide are replicated.

    Args:
        what: whose array it is, for warnings and errors.
        names: the names that the spec was made from, as in ``check_spec``.

    Raises:
        ArgumentError: the mesh lacks an axis, or there are more names than axes.

    Warns:
        UnevenLayoutWarning: a dimension is replicated. Length 1 costs nothing and causes no warning.
    """
    _check_names(spec, mesh, shape, what, names)
    uneven = dict(_uneven(spec, mesh, shape))
    for dimension in uneven:
        if shape[dimension] != 1:
            parts = uneven[dimension]
            warn(
                UnevenLayoutWarning,
                f"dimension {dimension} of a variable cannot be sharded evenly, and is replicated on every device",
                at=what,
                found=f"dimension {dimension} of length {shape[dimension]} in the shape {tuple(shape)}, and {spec}",
                expected=f"a multiple of {parts}: the mesh axis {_axes_in_words(spec[dimension], mesh)}",
                do="choose a length that it divides, replicate the axis with a rule (name, None), or use a mesh of "
                "another shape",
            )
    if not uneven:
        return spec
    return PartitionSpec(*(None if dimension in uneven else entry for dimension, entry in enumerate(spec)))


def check_spec(spec: PartitionSpec, mesh: Any, shape: tuple[int, ...], what: str, *, names: Any = None) -> None:
    """Raise if a sharding is impossible on a mesh for an array of this shape.

    Args:
        what: whose array it is, for errors.
        names: the names that the spec was made from.

    Raises:
        ArgumentError: the error names the axis, and the possible ones.
    """
    _check_names(spec, mesh, shape, what, names)
    for dimension, parts in _uneven(spec, mesh, shape):
        raise ArgumentError(
            f"dimension {dimension} of a variable cannot be divided among the devices",
            at=what,
            found=f"dimension {dimension} of length {shape[dimension]} in the shape {tuple(shape)}, and {spec}",
            expected=f"a multiple of {parts}: the mesh axis {_axes_in_words(spec[dimension], mesh)}",
            do="choose a length that it divides, or a spec that replicates this dimension",
        )


def _uneven(spec: PartitionSpec, mesh: Any, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The dimensions that the mesh cannot divide, and the number of parts asked for."""
    sizes = dict(mesh.shape)
    for dimension, (length, entry) in enumerate(zip(shape, spec, strict=False)):
        parts = math.prod(sizes[name] for name in axes_of(entry))
        if length % parts:
            yield dimension, parts


def _axes_in_words(entry: Any, mesh: Any) -> str:
    return " and ".join(f"{name!r} of size {mesh.shape[name]}" for name in axes_of(entry))


def _check_names(spec: PartitionSpec, mesh: Any, shape: tuple[int, ...], what: str, names: Any) -> None:
    unknown = [name for entry in spec for name in axes_of(entry) if name not in mesh.axis_names]
    if unknown:
        raise ArgumentError(
            "a variable names an axis that the mesh does not have",
            at=what,
            found=f"{', '.join(map(repr, unknown))} in {spec}, with the rules {list(get_logical_axis_rules())}",
            expected=f"axes of the mesh: {tuple(mesh.axis_names)}",
            do=f"add a rule: plait.logical_axis_rules([({unknown[0]!r}, mesh axis or None), ...])",
        )
    _check_rank(spec, shape, what, names)
    check_used_once(spec, names, what)


def _check_rank(spec: PartitionSpec, shape: tuple[int, ...], what: str, names: Any) -> None:
    if len(spec) > len(shape):
        raise ArgumentError(
            "a variable has more axis names than its array has axes",
            at=what,
            found=f"{len(spec)} names, {tuple(spec if names is None else names)}, for the shape {tuple(shape)}",
            expected=f"at most {len(shape)}",
            do="give one name, or None, for each axis; trailing axes may be left out",
        )


def check_used_once(spec: PartitionSpec, names: Any, what: str) -> None:
    """Raise if a spec shards two axes of one array over the same mesh axis.

    Raises:
        ArgumentError: the error names the axis and the dimensions.
    """
    seen: dict[Any, int] = {}
    for dimension, entry in enumerate(spec):
        for name in axes_of(entry):
            if name in seen:
                given = names if isinstance(names, (tuple, list)) else spec
                pair = (given[seen[name]], given[dimension])
                raise ArgumentError(
                    "two axes of one array cannot be sharded over the same mesh axis",
                    at=what,
                    found=f"{name!r} for the dimensions {seen[name]} ({pair[0]!r}) and {dimension} ({pair[1]!r}), "
                    f"with the rules {list(get_logical_axis_rules())}",
                    expected="each mesh axis at most once in an array",
                    do="give the two axes different names, and rules that map them to different mesh axes or None",
                )
            seen[name] = dimension


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes that an entry of a spec names."""
    return tuple(name for name in (entry if isinstance(entry, (tuple, list)) else (entry,)) if isinstance(name, str))
