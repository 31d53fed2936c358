"""Why a compiled call failed: names the path of a deleted or shared buffer, a bad value, or a bad sharding."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import jax
import numpy as np

from ..._compat import Tracer
from ...core.objects.cells import gone, is_gone
from ...errors import ArgumentError, TraceContextError
from ...paths import describe_path
from ...words import first_few
from ..call.gather import Gathered, gather
from .compiled import Compiled
from .shardings import Shardings


def explain_buffers(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error with paths if a buffer is gone, or a donated buffer is held by two variables."""
    gathered = gather((args, kwargs))
    explain_deleted(compiled.f, gathered)
    compiled.arguments(gathered, args, kwargs)


def explain_layout(shardings: Shardings, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """As ``explain_buffers``; and raise an error with paths if that being handled is about a sharding.

    It is kept by the model, and may not refer to the jitted function.
    """
    explain_buffers(compiled, args, kwargs)
    error = sys.exc_info()[1]
    if error is not None:
        shardings.explain(error, gather((args, kwargs)), args)


def explain_deleted(f: Any, gathered: Gathered) -> None:
    """Name the variables whose buffers an earlier call took over.

    Raises:
        DonatedArrayError: names their paths.
    """
    if gathered.walk is None:
        return
    flags = [any(map(is_gone, jax.tree.leaves(cell.raw))) for cell in gathered.walk.cells]
    if any(flags):
        labels = gathered.structure.value_labels(gathered.structure.labels(f)[0])
        places = [*itertools.compress(labels, flags)]
        raise gone(first_few(places, 5))


def explain_bad_values(error: Exception, gathered: Gathered) -> None:
    """Name the variable whose value JAX could not take.

    Raises:
        TraceContextError: a variable holds a value of a trace that has ended.
        ArgumentError: some variable holds neither arrays nor numbers.
    """
    if gathered.walk is None:
        return
    if isinstance(error, jax.errors.UnexpectedTracerError):
        leaked = [
            describe_path(path)
            for cell, path in zip(gathered.walk.cells, gathered.walk.paths(), strict=True)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(cell.raw))
        ]
        if leaked:
            raise TraceContextError(
                "a variable holds a value of a JAX trace that has ended",
                at=", ".join(leaked),
                found="a tracer, left behind by a function that changed a captured container while it was traced",
                expected="arrays",
                do="remove the object again, and pass the model as an argument to the function that adds it",
            ) from error
        return
    bad = []
    for cell, path in zip(gathered.walk.cells, gathered.walk.paths(), strict=True):
        for leaf in jax.tree.leaves(cell.raw):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
                bad.append((path, leaf))
    if bad:
        raise ArgumentError(
            "a variable holds a value that is no array",
            at=", ".join(describe_path(path) for path, _ in bad),
            found=f"a {type(bad[0][1]).__name__}",
            expected="arrays, or numbers",
            do="keep such a value as a plain attribute, which is static: model.name = value",
        ) from error
