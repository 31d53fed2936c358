"""Shards parameters over devices as TensorFlow DTensors, according to JAX's partition specs.

``JaxModule(..., pspecs=...)`` shards its variables over the mesh of ``maybe_enable_dtensor_export_on``. It is a mesh of
CPU devices, one for each device of the JAX mesh: a SavedModel is written from host memory.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import ArgumentError, ArgumentTypeError, ExportError
from ..util.context_values import held
from ..util.dependencies import require
from .program.checks import check_equal, check_known, check_type

__all__ = [
    "Mesh",
    "dtensor_initialized",
    "get_current_dtensor_mesh",
    "get_current_mesh",
    "get_pspec_from_jax_arrays",
    "initialize_dtensor",
    "jax_array_to_dtensor",
    "jax_mesh_to_dtensor_mesh",
    "maybe_enable_dtensor_export_on",
    "shutdown_dtensor",
]
__dir__ = __all__.copy

CONTEXT = "initialize_dtensor() once, then with maybe_enable_dtensor_export_on(mesh): ..."


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A JAX mesh and the DTensor mesh of the same shape and axis names."""

    jax_mesh: jax.sharding.Mesh
    dtensor_mesh: Any


class DTensorStartError(ExportError, ValueError):
    """TensorFlow has already run an operation, so DTensor can no longer be started."""


_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("dtensor_mesh", default=None)
_initialized = False
_was_shut_down = False


def _dtensor() -> Any:
    return require("tensorflow", extra="tensorflow", purpose="to use DTensors").experimental.dtensor


def initialize_dtensor(reset_context: bool = False) -> None:
    """Start TensorFlow's DTensor system, with as many CPU devices as JAX has devices in this process.

    Args:
        reset_context: whether to discard TensorFlow's context first. DTensor must be started before TensorFlow runs any
            operation; this allows it afterwards, but existing tensors become unusable.

    Raises:
        ExportError: it is already initialized, TensorFlow has already run an operation (also a ``ValueError`` then),
            or the number of clients differs from JAX's number of processes; a ``RuntimeError``.
    """
    global _initialized
    if _initialized and not reset_context:
        raise ExportError(
            "DTensor is already initialized",
            expected="one call of initialize_dtensor",
            do="check dtensor_initialized() first, or call shutdown_dtensor()",
        )
    dtensor = _dtensor()
    if dtensor.num_clients() != jax.process_count():
        raise ExportError(
            "the numbers of DTensor clients and JAX processes differ",
            found=f"{dtensor.num_clients()} DTensor clients, {jax.process_count()} JAX processes",
            expected="one client for each process",
            do="start the same number: DTENSOR_JOBS and jax.distributed.initialize",
        )
    try:
        dtensor.initialize_accelerator_system(
            "CPU", num_logical_cpu_devices=jax.local_device_count(), experimental_reset_context=reset_context
        )
    except ValueError as error:
        raise DTensorStartError(
            "DTensor can no longer be started",
            found=str(error),
            expected="a start before TensorFlow runs anything, since its devices are made only once",
            do="call initialize_dtensor first in the program, or initialize_dtensor(reset_context=True)",
        ) from error
    if _was_shut_down:
        # TensorFlow keeps the devices of the system that was shut down, and has no public way to make new ones.
        dtensor._reset_dtensor_device(False)
    _initialized = True


def dtensor_initialized() -> bool:
    """Whether ``initialize_dtensor`` was called and it has as many devices as JAX."""
    return _initialized and _dtensor().num_local_devices("CPU") == jax.local_device_count()


def shutdown_dtensor() -> None:
    """Stop the DTensor system.

    Raises:
        ExportError: DTensor is not initialized; a ``RuntimeError``.
    """
    global _initialized, _was_shut_down
    if not _initialized:
        raise ExportError(
            "DTensor is not initialized",
            found="0 systems to shut down",
            expected="a call of initialize_dtensor before",
            do="check dtensor_initialized() first",
        )
    _dtensor().shutdown_accelerator_system()
    _initialized, _was_shut_down = False, True


@contextlib.contextmanager
def maybe_enable_dtensor_export_on(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    """Set the mesh over which ``JaxModule`` shards variables, in this thread.

    Does nothing if ``mesh`` is ``None`` or DTensor is not initialized.
    """
    if mesh is None or not dtensor_initialized():
        yield
        return
    with held(_mesh, Mesh(mesh, jax_mesh_to_dtensor_mesh(mesh))):
        yield


def get_current_mesh() -> Mesh | None:
    """The innermost mesh of this thread's contexts, or ``None``."""
    return _mesh.get()


def get_current_dtensor_mesh() -> Any:
    """The DTensor mesh of ``get_current_mesh()``, or ``None``."""
    current = get_current_mesh()
    return None if current is None else current.dtensor_mesh


def get_pspec_from_jax_arrays(tree: Any) -> Any:
    """The partition spec of each array of ``tree``; arrays without a sharding have an empty one.

    Raises:
        ArgumentError: an array does not have a ``NamedSharding``, or arrays have different meshes.

    Example:
        >>> mesh = jax.sharding.Mesh(jax.devices()[:1], "d")
        >>> x = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P("d")))
        >>> specs = plait.export.get_pspec_from_jax_arrays({"x": x, "y": jax.ShapeDtypeStruct((2,), x.dtype)})
        >>> specs == {"x": jax.P("d"), "y": jax.P()}
        True
    """
    meshes: list[Any] = []

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            return PartitionSpec()
        advice, at = "jax.device_put(array, jax.NamedSharding(mesh, jax.P()))", jax.tree_util.keystr(path)
        message, expected = "an array is not sharded over a mesh", "a NamedSharding"
        check_type(message, sharding, NamedSharding, expected, advice, at=at, kind=ArgumentError)
        meshes.append(sharding.mesh)
        advice = "put them all on one mesh with jax.device_put"
        check_equal("arrays are sharded over different meshes", sharding.mesh, meshes[0], advice, at=at)
        return sharding.spec

    return jax.tree_util.tree_map_with_path(spec, tree)


def jax_mesh_to_dtensor_mesh(mesh: jax.sharding.Mesh) -> Any:
    """The DTensor mesh of CPU devices with the shape and the axis names of ``mesh``."""
    tf = require("tensorflow", extra="tensorflow", purpose="to use DTensors")
    dtensor = _dtensor()
    devices = list(mesh.devices.flat)
    local = [index for index, device in enumerate(devices) if device.process_index == jax.process_index()]
    cpus = dtensor.local_devices("CPU")
    order = {device.id: index for index, device in enumerate(sorted(jax.local_devices(), key=lambda each: each.id))}
    return dtensor.Mesh(
        list(mesh.axis_names),
        np.arange(len(devices)).reshape(mesh.devices.shape),
        local,
        [tf.DeviceSpec.from_string(cpus[order[devices[index].id]].to_string()) for index in local],
    )


def jax_array_to_dtensor(
    arr: jax.Array,
    pspec: PartitionSpec | None,
    dmesh: Any,
    jax_mesh: jax.sharding.Mesh | None = None,
    allow_multi_axis_sharding_consolidation: bool = False,
) -> Any:
    """``arr`` as a DTensor on ``dmesh``, sharded by ``pspec``.

    Args:
        arr: the array.
        pspec: its partition spec; ``None`` does not shard it.
        dmesh: the mesh of ``jax_mesh_to_dtensor_mesh``.
        jax_mesh: the JAX mesh of the same shape and axis names; without it, that of the array if it fits, or else of
            JAX's first devices.
        allow_multi_axis_sharding_consolidation: whether to keep only the largest of several axes of one dimension.

    Raises:
        ArgumentError: a dimension is sharded over several axes, which is not allowed, or is not divisible by the axis
            size, or the mesh does not have an axis.
        ArgumentTypeError: an entry of the spec is neither ``None``, a name nor a tuple of names.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to use DTensors")
    dtensor = _dtensor()
    jax_mesh = jax_mesh or _mesh_like(dmesh, arr)
    axes = spec_axes(arr.shape, pspec, jax_mesh, consolidate=allow_multi_axis_sharding_consolidation)
    layout = dtensor.Layout([dtensor.UNSHARDED if axis is None else axis for axis in axes], dmesh)
    laid_out = jax.device_put(arr, NamedSharding(jax_mesh, PartitionSpec(*axes)))
    shards = {shard.device: np.asarray(shard.data) for shard in laid_out.addressable_shards}
    local = [device for device in jax_mesh.devices.flat if device in shards]
    return dtensor.pack([tf.constant(shards[device]) for device in local], layout)


def _mesh_like(dmesh: Any, arr: jax.Array) -> jax.sharding.Mesh:
    """A JAX mesh with the shape and axis names of a DTensor mesh."""
    shape = {name: dmesh.dim_size(name) for name in dmesh.dim_names}
    own = getattr(getattr(arr, "sharding", None), "mesh", None)
    if isinstance(own, jax.sharding.Mesh) and dict(own.shape) == shape and [*own.axis_names] == [*shape]:
        return own
    devices = np.array(jax.devices()[: dmesh.size]).reshape([*shape.values()])
    return jax.sharding.Mesh(devices, tuple(shape))


def spec_axes(
    shape: Sequence[int], pspec: PartitionSpec | None, mesh: jax.sharding.Mesh, *, consolidate: bool
) -> list[str | None]:
    """The one axis that each dimension is sharded over, or ``None``."""
    entries = tuple(pspec or ())
    if len(entries) > len(shape):
        raise ArgumentError(
            "a partition spec has more entries than the array has dimensions",
            found=f"{pspec} for the shape {tuple(shape)}",
            expected=f"at most {len(shape)} entries",
            do="give each array its own spec in pspecs",
        )
    padded = entries + (None,) * (len(shape) - len(entries))
    return [
        _axis(dimension, size, entry, mesh, consolidate=consolidate)
        for dimension, (size, entry) in enumerate(zip(shape, padded, strict=True))
    ]


def _axis(dimension: int, size: int, entry: Any, mesh: jax.sharding.Mesh, *, consolidate: bool) -> str | None:
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            "a partition spec has an entry that is not an axis",
            at=f"dimension {dimension}",
            found=repr(entry),
            expected="None, the name of a mesh axis, or a tuple of names",
            do="jax.P('data', None)",
        )
    message = "a partition spec names an axis that the mesh does not have"
    advice = "use the axis names of the mesh that the context was made for"
    check_known(message, names, mesh.shape, advice, at=f"dimension {dimension}")
    names = [name for name in names if mesh.shape[name] > 1]
    if len(names) > 1 and not consolidate:
        raise ArgumentError(
            "a dimension is sharded over several axes, which DTensor does not support",
            at=f"dimension {dimension}",
            found=" and ".join(f"the axis {name!r} of size {mesh.shape[name]}" for name in names),
            expected="one axis, unless the others may be dropped",
            do="JaxModule(..., allow_multi_axis_sharding_consolidation=True) keeps the largest axis",
        )
    if not names:
        return None
    axis = max(names, key=lambda name: mesh.shape[name])
    if size % mesh.shape[axis]:
        raise ArgumentError(
            "a dimension cannot be divided among the devices of its axis",
            at=f"dimension {dimension}",
            found=f"size {size}, and the axis {axis!r} of size {mesh.shape[axis]}",
            expected="a multiple of the axis size",
            do="do not shard the dimension: None in its place in the spec",
        )
    return axis
