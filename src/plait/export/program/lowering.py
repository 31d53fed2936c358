"""Lower a program once, for several platforms and with free sizes.

The weights are arguments of the lowered function, not constants in it, so a file stores them once and beside the
function. The result is a ``jax.export.Exported``: StableHLO plus its calling convention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from ...core.graph.locate import place_of
from ...errors import ExportError, PlaitError
from .checks import check_known, check_some
from .input_spec import symbolic
from .operations import operations
from .program import Arrays, Program
from .rewriting import NO_MESH, without_layouts

PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def known_platforms(platforms: str | Sequence[str]) -> tuple[str, ...]:
    """The platforms, each once; JAX itself writes a file for a platform that no one has.

    Raises:
        ArgumentError: there is none, or one has another name.
    """
    wanted = tuple(dict.fromkeys([platforms] if isinstance(platforms, str) else platforms))
    advice = "platforms=('cpu', 'cuda'), or leave it out"
    check_some("an export needs a platform to run on", "platforms", wanted, advice)
    check_known("there is no platform of this name", wanted, KNOWN_PLATFORMS, advice)
    return wanted


def traced_program(program: Program) -> tuple[Program, list[str]]:
    """The program without optional weights that it does not use, and the names of its outputs.

    Raises:
        ExportError: it cannot be traced, or calls back into Python; the message has JAX's reason, and the path of the
            layer where that is known.
    """
    try:
        traced = _traced(jax.jit(program.call), _shapes(program), symbolic(program.inputs))
    except PlaitError:
        raise
    except Exception as error:  # whatever the model raises
        raise _explained(error) from error
    unused = program.optional - _used(traced.jaxpr.jaxpr, sorted(program.weights))  # as JAX flattens a dictionary
    kept = {name: array for name, array in program.weights.items() if name not in unused}
    return dataclasses.replace(program, weights=kept), list(traced.out_info)


def _shapes(program: Program) -> Arrays:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in program.weights.items()}


def _explained(error: Exception) -> ExportError:
    """Why a model cannot be traced with the sizes and dtypes of its inputs, and where."""
    what = str(error).strip().split("\n\n")[0]
    return ExportError(
        "the model cannot be exported with these inputs",
        at=place_of(error.__traceback__),
        found=f"{type(error).__name__}: {what[:600]}",
        expected="shapes and decisions that follow from the shapes of the inputs, not from their values",
        do="fix the sizes that the message names in InputSpec, or use jnp.where, plait.cond and masks",
    )


def export_program(program: Program, platforms: Sequence[str] = PLATFORMS) -> tuple[jax.export.Exported, Program]:
    """The program as ``jax.export`` has it, and the program without optional weights that it does not use.

    Raises:
        ExportError: it cannot be traced or lowered, or computes with several devices.
    """
    program, _ = traced_program(program)
    return lowered(program.call, _shapes(program), symbolic(program.inputs), platforms=platforms), program


def lowered(
    function: Callable[..., Any],
    *shapes: Any,
    platforms: Sequence[str] = PLATFORMS,
    disabled_checks: Sequence[Any] = (),
) -> jax.export.Exported:
    """A function of pytrees of arrays as ``jax.export`` has it: the one way from JAX to a file.

    A file is a program for one device. Where the function says only how arrays are laid out over several, as
    ``jax.jit(..., in_shardings=...)`` and sharding constraints do, that is left out: it changes no value.

    Args:
        function: traceable by JAX.
        shapes: its arguments as ``jax.ShapeDtypeStruct``; free sizes are symbolic.
        platforms: where it can run.
        disabled_checks: safety checks of ``jax.export`` to leave out.

    Raises:
        ExportError: it computes with several devices, or calls back into Python.
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
    except ValueError as error:  # an array on a mesh with explicit axes, which its type names
        reason = error
    raise ExportError(
        "the function computes with several devices",
        found=f"{exported.nr_devices} devices",
        expected="a function for one device; where arrays only lie on several, that is left out",
        do="leave shard_map and meshes with explicit axes out of the exported function",
    ) from reason


def _exported(
    function: Callable[..., Any], shapes: Sequence[Any], platforms: Sequence[str], disabled_checks: Sequence[Any]
) -> jax.export.Exported:
    # Arguments that are not used are kept: an input may be the only one to tell a symbolic size.
    jitted = jax.jit(function, keep_unused=True)
    _traced(jitted, *shapes)
    return jax.export.export(jitted, platforms=tuple(platforms), disabled_checks=disabled_checks)(*shapes)


def _traced(jitted: Any, *shapes: Any) -> Any:
    """The function as JAX traces it; what calls back into Python is refused.

    ``jax.export`` takes such functions, and refuses to write them; a file for another program cannot hold them.
    """
    traced = jitted.trace(*shapes)
    names = {eqn.primitive.name for eqn, _ in operations(traced.jaxpr.jaxpr)}
    callbacks = sorted(name for name in names if "callback" in name or "debug_print" in name)
    if callbacks:
        raise ExportError(
            "the model calls back into Python, which no file can hold",
            found=", ".join(callbacks),
            expected="operations of JAX alone",
            do="leave jax.debug.print, io_callback and pure_callback out of the exported method",
        )
    return traced


def _used(jaxpr: Any, names: list[str]) -> set[str]:
    """The first arguments of a program, which have these names, that its results depend on."""
    needed = {var for var in jaxpr.outvars if not hasattr(var, "val")}
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(var for var in eqn.invars if not hasattr(var, "val"))
    return {name for name, var in zip(names, jaxpr.invars, strict=False) if var in needed}
