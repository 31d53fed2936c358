"""Checks that weights, inputs and operations are arrays of numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ExportError, PlaitError
from ...util.dtypes import is_number_dtype as is_number_dtype
from ...util.jax_versions import Tracer
from ...util.words import describe_type


def instead_of_numbers(value: Any) -> str | None:
    """Describe a value that is not a number or an array of numbers; ``None`` for one that is."""
    if isinstance(value, (bool, int, float, complex)):
        return None
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return describe_type(value)
    if is_number_dtype(value.dtype):
        return None
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.extended)
    return f"{'a random key of' if is_key else 'an array of'} dtype {value.dtype}"


def check_numbers(value: Any, at: str, kind: type[PlaitError] = ExportError) -> None:
    """Raise for a parameter that is not an array of numbers.

    Raises:
        ExportError: or another error type; names the parameter.
    """
    if isinstance(value, Tracer):
        raise kind(
            "a model cannot be exported inside a JAX transform",
            at=at,
            found=describe_type(value),
            expected="an array with numbers",
            do="export outside of jit, grad, vmap and scan",
        )
    found = instead_of_numbers(value)
    if found is not None:
        raise kind(
            "a parameter is not an array",
            at=at,
            found=found,
            expected="arrays of numbers",
            do="remove everything else, also random keys: plait.split(model, plait.Param, ...)",
        )
