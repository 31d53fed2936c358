"""How tests compare values: one function for arrays and for trees of them, and one table of tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EXACT = {"rtol": 0.0, "atol": 0.0}
# What two ways to compute one thing may differ by, since they sum in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # float32
LOOSE = {"rtol": 2e-5, "atol": 2e-5}  # float32, through several layers
HALF = {"rtol": 2e-2, "atol": 2e-2}  # bfloat16 has 8 bits


def assert_same(
    found: Any, expected: Any, tolerance: Mapping[str, float] = EXACT, *, what: str = "", dtypes: bool = True
) -> None:
    """Two trees have the same structure, and in each place the same type of leaf, shape, dtype and values.

    Keys of random streams are compared as their bits, text and the like by ``==``. With ``dtypes=False`` the dtypes may
    differ: those of TensorFlow's or NumPy's results, which are wider.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(found)
    others, other_structure = jax.tree.flatten(expected)
    assert structure == other_structure, f"{what}: {structure} instead of {other_structure}"
    for (path, one), other in zip(pairs, others, strict=True):
        assert_same_leaf(one, other, tolerance, what=f"{what}{jax.tree_util.keystr(path)}", dtypes=dtypes)


def assert_same_leaf(found: Any, expected: Any, tolerance: Mapping[str, float], *, what: str, dtypes: bool) -> None:
    """Two arrays, numbers or other values; ``what`` is in the message."""
    one, other = readable(found), readable(expected)
    assert one.shape == other.shape, f"{what}: {one.shape} instead of {other.shape}"
    if one.dtype.kind in "OSU" or other.dtype.kind in "OSU":
        assert one.tolist() == other.tolist(), f"{what}: {one.tolist()} instead of {other.tolist()}"
        return
    assert not dtypes or one.dtype == other.dtype, f"{what}: {one.dtype} instead of {other.dtype}"
    if not any(tolerance.values()):
        np.testing.assert_array_equal(one, other, err_msg=what)
        return
    np.testing.assert_allclose(wide(one), wide(other), err_msg=what, **tolerance)


def readable(leaf: Any) -> np.ndarray:
    """An array of NumPy; a key as its bits."""
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def wide(array: np.ndarray) -> np.ndarray:
    """Extension dtypes, such as bfloat16, as what NumPy can subtract; the values stay."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.float64)
    return array.astype(np.int64) if array.dtype.kind == "V" else array  # int4 and its like
