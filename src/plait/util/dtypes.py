"""Which dtypes are numeric."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def is_number_dtype(dtype: Any) -> bool:
    """Whether the dtype is numeric or bool, including those of ``ml_dtypes``; not strings, dates, objects or keys.

    Example:
        >>> from plait.util.dtypes import is_number_dtype
        >>> is_number_dtype(jnp.bfloat16), is_number_dtype(jax.random.key(0).dtype), is_number_dtype("m8[s]")
        (True, False, False)
    """
    try:
        return jnp.issubdtype(dtype, np.bool_) or (jnp.issubdtype(dtype, np.number) and np.dtype(dtype).kind != "m")
    except TypeError:  # not a dtype
        return False
