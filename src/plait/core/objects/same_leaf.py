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
    (leaves, treedef), (others, other) = jax.tree.flatten(first), jax.tree.flatten(second)
    return treedef == other and all(map(_same_array, leaves, others))


def _same_array(first: Any, second: Any) -> bool:
    if first is second:
        return True
    is_like = all(getattr(first, name, None) == getattr(second, name, None) for name in ("shape", "dtype"))
    return is_like and bool(np.all(first == second))
