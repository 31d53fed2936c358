"""Type aliases of public signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .util.paths import Key as Key, Path as Path

Array = jax.Array
ArrayLike = jax.Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex
Shape = Sequence[int]
DTypeLike = Any
PRNGKey = jax.Array
Initializer = Callable[..., Any]
FilterLiteral = Any
PrecisionLike = Any
Axes = int | Sequence[int]
