"""Why a compiled call failed: names the path of a deleted or shared buffer, a bad value, or a bad sharding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..._compat import Tracer
from ...core.objects.cells import gone, is_gone
from ...errors import ArgumentError, TraceContextError
from ...words import first_few
from ..call.gather import Gathered, gather
from .compiled import Compiled


def explain_failure(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error with paths if a buffer was already donated, if two variables share a donated buffer, or if the
    error being handled is about a sharding."""
    gathered = gather((args, kwargs), compiled.f)
    explain_deleted(compiled.f, gathered)
    compiled.arguments(gathered, args, kwargs)
    error = sys.exc_info()[1]
    if error is not None and compiled.shardings is not None:
        compiled.shardings.explain(error, compiled.f, args)


def explain_deleted(f: Any, gathered: Gathered) -> None:
    """Raise an error that names the variables whose buffers were donated to an earlier call.

    Raises:
        DonatedArrayError: names their paths.
    """
    deleted = _holding(f, gathered, is_gone)
    if deleted:
        raise gone(first_few([*deleted], 5))


def explain_bad_values(error: Exception, f: Any, gathered: Gathered) -> None:
    """Raise an error that names the variable whose value JAX does not accept.

    Raises:
        TraceContextError: a variable has a value from a trace that has ended.
        ArgumentError: a variable has a value that is neither arrays nor numbers.
    """
    if isinstance(error, jax.errors.UnexpectedTracerError):
        leaked = _holding(f, gathered, lambda leaf: isinstance(leaf, Tracer))
        if leaked:
            raise TraceContextError(
                "a variable has a value from a JAX trace that has ended",
                at=", ".join(leaked),
                found="a tracer, stored by a function that changed a captured container while it was traced",
                expected="arrays",
                do="remove the object again, and pass the model as an argument to the function that adds it",
            ) from error
        return
    accepted = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    bad = _holding(f, gathered, lambda leaf: not isinstance(leaf, accepted))
    if bad:
        raise ArgumentError(
            "a variable has a value that is not an array",
            at=", ".join(bad),
            found=f"a {type(next(iter(bad.values()))).__name__}",
            expected="arrays or numbers",
            do="store such a value as a plain attribute, which is static: model.name = value",
        ) from error


def _holding(f: Any, gathered: Gathered, is_bad: Callable[[Any], bool]) -> dict[str, Any]:
    """The variables with such a value, by their paths, and the part of the value that is bad."""
    cells = [] if gathered.walk is None else gathered.walk.cells
    bad = {i: leaf for i, cell in enumerate(cells) for leaf in jax.tree.leaves(cell.raw) if is_bad(leaf)}
    labels = gathered.structure.value_labels(gathered.structure.labels(f)[0]) if bad else []
    return {labels[i]: leaf for i, leaf in bad.items()}
