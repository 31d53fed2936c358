"""Whether two leaves of states are equal: class, metadata and values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .cells import metadata_key
from .variables import Variable


def same_leaf(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, Variable):
        if metadata_key(first._cell) != metadata_key(second._cell):
            return False
        first, second = first.get_raw_value(), second.get_raw_value()
    if first is second:
        return True
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    return all(_same_array(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def _same_array(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if getattr(first, "shape", None) != getattr(second, "shape", None):
        return False
    if getattr(first, "dtype", None) != getattr(second, "dtype", None):
        return False
    return bool(np.all(first == second))
