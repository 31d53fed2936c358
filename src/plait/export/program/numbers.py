"""What is an array of numbers: the one question, asked of weights, inputs and operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._compat import Tracer
from ...errors import ExportError, PlaitError
from ...words import describe_type


def is_number_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype hold numbers or truth values: no text, dates, objects or keys of random numbers."""
    try:
        return jnp.issubdtype(dtype, np.bool_) or (jnp.issubdtype(dtype, np.number) and np.dtype(dtype).kind != "m")
    except TypeError:  # no dtype at all
        return False


def instead_of_numbers(value: Any) -> str | None:
    """What a value is that is no number and no array of numbers; ``None`` for one that is."""
    if isinstance(value, (bool, int, float, complex)):
        return None
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return describe_type(value)
    if is_number_dtype(value.dtype):
        return None
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.extended)
    return f"{'a key of random numbers, of' if is_key else 'an array of'} dtype {value.dtype}"


def check_numbers(value: Any, at: str, kind: type[PlaitError] = ExportError) -> None:
    """Refuse a parameter that has no numbers to be written.

    Raises:
        ExportError: or an error of another kind; it names the parameter.
    """
    if isinstance(value, Tracer):
        raise kind(
            "a model cannot be exported while JAX traces it",
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
            do="leave out what is none, keys of random numbers too: plait.split(model, plait.Param, ...)",
        )
