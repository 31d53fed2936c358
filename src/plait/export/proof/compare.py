"""Compares two sets of arrays: whether they agree, and their differences.

Numbers are compared in float64, integers exactly, and text must be equal. **A value agrees with itself**: NaN with NaN,
an infinity with the same infinity. The difference of NaN and any other value, or of an infinity and any other value, is
infinite and exceeds any tolerance.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

# The default tolerances, in roundings of a dtype with this number of bits, relative to the largest value, because the
# order of sums may differ. For few bits, sums are accumulated in wider numbers, and a hundred roundings would be too
# tolerant.
ROUNDINGS = {16: 8, 32: 256, 64: 256}


def wide(array: np.ndarray) -> np.ndarray:
    """The array in float64, or complex128."""
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def difference(result: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Absolute differences, flat, according to the rule above."""
    if output.dtype.kind == "S":
        return np.where(result.ravel() == output.ravel(), 0.0, np.inf)
    common = np.result_type(result, output) if {result.dtype.kind, output.dtype.kind} <= set("iu") else None
    if common is not None and common.kind in "iu":  # exact, also where float64 has too few digits
        a, b = (each.ravel().astype(common) for each in (result, output))
        return (np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).astype(np.float64)
    a, b = wide(result).ravel(), wide(output).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))


def agree(differences: np.ndarray, tolerance: Any) -> np.ndarray:
    """Which differences are within a tolerance, one for all or one for each; infinite differences never are."""
    return (differences == 0) | (np.isfinite(differences) & (differences <= tolerance))


def relative_tolerance(dtype: Any) -> float:
    """The default tolerance for values of a dtype, relative to the largest of them; 0 for integers and booleans."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    kind = jnp.finfo(dtype)
    return float(ROUNDINGS.get(kind.bits, 1) * kind.eps)


def largest_of(array: np.ndarray, *, initial: float = 0.0) -> float:
    """The largest finite absolute value, and at least ``initial``."""
    sizes = np.abs(wide(array))
    return float(sizes[np.isfinite(sizes)].max(initial=initial))


def tolerance_of(output: np.ndarray) -> float:
    """The default tolerance for an expected output."""
    if output.dtype.kind == "S":
        return 0.0
    return relative_tolerance(output.dtype) * largest_of(output, initial=1.0)
