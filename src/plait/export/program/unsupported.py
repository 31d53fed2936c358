"""Finds the operations of a program that a format does not support, with the paths of their layers.

Converters stop at the first unsupported operation, and few report its location. So after a conversion has failed, the
program is traced with fixed sizes, and its operations are converted separately, in groups that are bisected if they
fail. The result is exactly the set of operations that the converter rejects, whatever its reasons and its version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.extend.core

from ...errors import ExportError
from ...util.dtypes import is_number_dtype
from .input_spec import has_free_sizes
from .operations import operations
from .program import Program

# Operations that only call an inner program. Loops and branches are not included: a converter may support the body of a
# loop, but not the loop.
CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}
SIZES = (2, 8, 32, 128)  # values to try for dynamic sizes; the first that the model accepts is used
SHOWN = 12
NO_LAYER = "the function itself"

Convert = Callable[[Callable[..., Any], Sequence[jax.ShapeDtypeStruct]], None]
"""Converts a function of arrays with these shapes, or raises."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation that cannot be converted.

    Attributes:
        name: its name in JAX.
        layers: the paths of its layers.
        reason: the converter's message, in one line.
    """

    name: str
    layers: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.name} in {', '.join(self.layers)}: {self.reason}"


def unsupported_operations(program: Program, convert: Convert) -> list[Operation]:
    """The operations of a program that ``convert`` raises for, in the order of the program."""
    closed = _with_fixed_sizes(program)
    if closed is None:
        return []
    kinds: dict[Any, tuple[Any, list[str]]] = {}
    for eqn, layer in operations(closed.jaxpr):
        if _can_stand_alone(eqn):
            key = (eqn.primitive.name, str(eqn.params), str([var.aval for var in eqn.invars]))
            kinds.setdefault(key, (eqn, []))[1].append(layer or NO_LAYER)
    refused = _refused([eqn for eqn, _ in kinds.values()], convert)
    found: dict[tuple[str, str], list[str]] = {}
    for eqn, layers in kinds.values():
        if id(eqn) in refused:
            found.setdefault((eqn.primitive.name, refused[id(eqn)]), []).extend(layers)
    return [Operation(name, tuple(dict.fromkeys(layers)), reason) for (name, reason), layers in found.items()]


def refusal_of(
    message: str, error: Exception | None, programs: Collection[Program], convert: Convert, *, expected: str
) -> ExportError:
    """The error for programs that a converter rejected with ``error``; it lists their unsupported operations."""
    listed = [each for program in programs for each in unsupported_operations(program, convert)]
    free = any(has_free_sizes(program.inputs) for program in programs)
    return refusal(message, error, listed, expected=expected, free=free)


def refusal(
    message: str, error: Exception | None, listed: list[Operation], *, expected: str, free: bool = True
) -> ExportError:
    """An error that lists the unsupported operations, or has the converter's message if there are none.

    Args:
        message: the first line.
        error: the converter's exception.
        listed: the unsupported operations.
        expected: what the converter supports.
        free: whether an input has a dynamic size, which may be the reason.
    """
    if not listed:
        return ExportError(
            message,
            found=f"{_line(error)}; each operation alone is supported",
            expected=expected,
            do="fix the sizes of the inputs in InputSpec, or export to another format"
            if free
            else "export to another format; StableHLO has all operations",
        )
    lines = [str(operation) for operation in listed[:SHOWN]]
    if len(listed) > SHOWN:
        lines.append(f"and {len(listed) - SHOWN} more")
    stacked = any(each.name == "scan" for each in listed)
    return ExportError(
        message,
        at=None if listed[0].layers[0] == NO_LAYER else listed[0].layers[0],
        found="\n            ".join(lines),
        expected=expected,
        do=("export a model without stacks: plait.as_list(model); " if stacked else "")
        + "replace these operations in the named layers, or export to another format; StableHLO has all of them",
    )


def _with_fixed_sizes(program: Program) -> Any:
    weights = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in program.weights.items()}
    for size in SIZES:
        shapes = {
            spec.name: jax.ShapeDtypeStruct([n if isinstance(n, int) else size for n in spec.shape], spec.dtype)
            for spec in program.inputs
        }
        try:
            return jax.make_jaxpr(program.call)(weights, shapes)
        except Exception:  # a model may raise anything for an unsupported size
            continue
    return None


def _can_stand_alone(eqn: Any) -> bool:
    return eqn.primitive.name not in CALLS and all(_is_plain(var.aval) for var in (*eqn.invars, *eqn.outvars))


def _is_plain(aval: Any) -> bool:
    """Whether values of this kind can be inputs and outputs; random keys cannot, in other formats."""
    return hasattr(aval, "dtype") and is_number_dtype(aval.dtype)


def _refused(eqns: list[Any], convert: Convert) -> dict[int, str]:
    """The reason for each operation that cannot be converted, by identity, found by bisection."""
    if not eqns:
        return {}
    try:
        convert(*_together(eqns))
    except Exception as error:  # converters raise their own exception types
        if len(eqns) == 1:
            return {id(eqns[0]): _line(error)}
        half = len(eqns) // 2
        return _refused(eqns[:half], convert) | _refused(eqns[half:], convert)
    return {}


def _together(eqns: list[Any]) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A function with these operations, each on separate inputs, and the shapes of all inputs."""
    avals = [var.aval for eqn in eqns for var in eqn.invars if not hasattr(var, "val")]

    def function(*arrays: Any) -> tuple[Any, ...]:
        given, outputs = iter(arrays), []
        for eqn in eqns:
            operands = [var.val if hasattr(var, "val") else next(given) for var in eqn.invars]
            results = eqn.primitive.bind(*operands, **eqn.params)
            outputs += results if eqn.primitive.multiple_results else [results]
        return tuple(outputs)

    return function, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]


def _line(error: Any) -> str:
    """A converter's message, without source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.rpartition("error: ")[2] for line in lines if "error: " in line] or lines
    return ": ".join([type(error).__name__, *said[:1]])[:300]
