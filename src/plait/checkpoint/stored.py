"""A lazy array in a file: its shape and dtype are known, its values are read on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array whose values are read on demand, and not cached.

    Args:
        shape: its shape.
        dtype: its dtype.
        read: reads the values.

    Example:
        >>> from plait.checkpoint import StoredArray
        >>> import numpy as np
        >>> array = StoredArray((2,), np.dtype("float32"), lambda: np.ones(2, np.float32))
        >>> array.shape, np.asarray(array).tolist()
        ((2,), [1.0, 1.0])
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)
