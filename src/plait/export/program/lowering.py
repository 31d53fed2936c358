"""Lowers a program once, for several platforms and with dynamic sizes.

The weights are arguments of the lowered function, not constants in it, so a file stores them once and separately. The
result is a ``jax.export.Exported``: StableHLO plus its calling convention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from ...core.module_calls.running_modules import place_of
from ...errors import ExportError, PlaitError
from ...util.jax_versions import whole_tracebacks
from .checks import check_known, check_some
from .input_spec import symbolic
from .operations import operations
from .program import Arrays, Program
from .rewriting import NO_MESH, RECOMPUTED, rewritten, without_layouts

PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def known_platforms(platforms: str | Sequence[str]) -> tuple[str, ...]:
    """The platforms, each once, checked: JAX would accept an unknown one.

    Raises:
        ArgumentError: no platform is given, or an unknown one.
    """
    wanted = tuple(dict.fromkeys([platforms] if isinstance(platforms, str) else platforms))
    advice = "platforms=('cpu', 'cuda'), or omit it"
    check_some("an export needs a platform to run on", "platforms", wanted, advice)
    check_known("there is no platform of this name", wanted, KNOWN_PLATFORMS, advice)
    return wanted


def traced_program(program: Program) -> tuple[Program, list[str]]:
    """The program without recomputation and unused optional weights, and the names of its outputs. (rule E32)

    Raises:
        ExportError: it cannot be traced, or has Python callbacks; gives JAX's reason, and the path of the layer if it
            is known.
    """
    try:
        with whole_tracebacks():
            traced = _traced(jax.jit(program.call), _shapes(program), symbolic(program.inputs))
    except PlaitError:
        raise
    except Exception as error:  # the model may raise anything
        raise _explained(error) from error
    if any(eqn.primitive.name in RECOMPUTED for eqn, _ in operations(traced.jaxpr.jaxpr)):
        return traced_program(dataclasses.replace(program, call=rewritten(program.call, RECOMPUTED)))
    unused = program.optional - _used(traced.jaxpr.jaxpr, sorted(program.weights))  # JAX's order for a dictionary
    kept = {name: array for name, array in program.weights.items() if name not in unused}
    return dataclasses.replace(program, weights=kept), list(traced.out_info)


def _shapes(program: Program) -> Arrays:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in program.weights.items()}


def _explained(error: Exception) -> ExportError:
    """The error for a model that cannot be traced with its input sizes and dtypes."""
    what = str(error).strip().split("\n\n")[0]
    return ExportError(
        "the model cannot be exported with these inputs",
        at=place_of(error),
        found=f"{type(error).__name__}: {what[:600]}",
        expected="shapes and control flow that depend on the shapes of the inputs, not on their values",
        do="fix the sizes that the message names in InputSpec, or use jnp.where, plait.cond and masks; for the size of "
        "an input, x.shape[0] instead of len(x)",
    )


def export_program(program: Program, platforms: Sequence[str] = PLATFORMS) -> tuple[jax.export.Exported, Program]:
    """The ``jax.export.Exported`` of the program, and the program without unused optional weights.

    Raises:
        ExportError: it cannot be traced or lowered, or computes on several devices.
    """
    program, _ = traced_program(program)
    return lowered(program.call, _shapes(program), symbolic(program.inputs), platforms=platforms), program


def lowered(
    function: Callable[..., Any],
    *shapes: Any,
    platforms: Sequence[str] = PLATFORMS,
    disabled_checks: Sequence[Any] = (),
) -> jax.export.Exported:
    """Export a function of pytrees of arrays with ``jax.export``: all formats use this.

    A file is a program for one device. If the function only specifies how arrays are sharded over several devices, as
    ``jax.jit(..., in_shardings=...)`` and sharding constraints do, the shardings are removed, since they change no
    value.

    Args:
        function: traceable by JAX.
        shapes: its arguments as ``jax.ShapeDtypeStruct``; dynamic sizes are symbolic.
        platforms: where it can run.
        disabled_checks: safety checks of ``jax.export`` to disable.

    Raises:
        ExportError: it computes on several devices, or has Python callbacks.
    """
    exported = _exported(function, shapes, platforms, disabled_checks)
    if exported.nr_devices == 1:
        return exported
    reason = None
    try:
        alone = without_layouts(function, *shapes)
        with jax.set_mesh(NO_MESH):
            alone = _exported(alone, shapes, platforms, disabled_checks)
        if alone.nr_devices == 1:
            return alone
    except ValueError as error:  # an array on a mesh with explicit axes, which are part of its type
        reason = error
    raise ExportError(
        "the function computes on several devices",
        found=f"{exported.nr_devices} devices",
        expected="a function for one device; shardings and sharding constraints are removed",
        do="remove shard_map and meshes with explicit axes from the exported function",
    ) from reason


def _exported(
    function: Callable[..., Any], shapes: Sequence[Any], platforms: Sequence[str], disabled_checks: Sequence[Any]
) -> jax.export.Exported:
    # Unused arguments are kept: an input may be the only one that determines a symbolic size.
    jitted = jax.jit(function, keep_unused=True)
    _traced(jitted, *shapes)
    return jax.export.export(jitted, platforms=tuple(platforms), disabled_checks=disabled_checks)(*shapes)


def _traced(jitted: Any, *shapes: Any) -> Any:
    """Trace the function, and raise for Python callbacks.

    ``jax.export`` accepts such functions, but cannot serialise them; a file for another program cannot contain them.
    """
    traced = jitted.trace(*shapes)
    names = {eqn.primitive.name for eqn, _ in operations(traced.jaxpr.jaxpr)}
    callbacks = sorted(name for name in names if "callback" in name or "debug_print" in name)
    if callbacks:
        raise ExportError(
            "the model has Python callbacks, which cannot be exported",
            found=", ".join(callbacks),
            expected="only JAX operations",
            do="remove jax.debug.print, io_callback and pure_callback from the exported method",
        )
    return traced


def _used(jaxpr: Any, names: list[str]) -> set[str]:
    """The names of the first arguments of a program, without those that its results do not depend on."""
    needed = {var for var in jaxpr.outvars if not hasattr(var, "val")}
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(var for var in eqn.invars if not hasattr(var, "val"))
    return {name for name, var in zip(names, jaxpr.invars, strict=False) if var in needed}
