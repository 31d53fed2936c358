"""The comparison that tests use sees what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare import CLOSE, EXACT, HALF, assert_same

TREE = {"a": [jnp.ones(2), np.arange(3)], "b": {"key": jax.random.key(1), "text": np.array([b"x"], object)}}


@pytest.mark.parametrize(
    ("found", "expected", "tolerance"),
    [
        (TREE, jax.tree.map(lambda x: x, TREE), EXACT),
        (jnp.float32(1 + 5e-6), jnp.float32(1), CLOSE),
        (jnp.full(2, 1.01, jnp.bfloat16), jnp.ones(2, jnp.bfloat16), HALF),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), EXACT),
        (jnp.ones(2, jnp.int4), jnp.ones(2, jnp.int4), EXACT),
        (1 + 1j, 1 + 1j, EXACT),
        (2**62 + 1, 2**62 + 1, EXACT),
    ],
)
def test_what_is_the_same_passes(found, expected, tolerance):
    assert_same(found, expected, tolerance)


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        ({"a": 1}, {"b": 1}, "'a'"),
        ([1], (1,), "instead of"),
        ({"a": [1, 2.0]}, {"a": [1, 3.0]}, r"\['a'\]\[1\]"),
        (jnp.ones(2), jnp.ones((1, 2)), r"\(2,\) instead of \(1, 2\)"),
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16), "float32 instead of bfloat16"),
        (jnp.float32(1 + 1e-6), jnp.float32(1), "not equal"),
        (jnp.bfloat16(1.01), jnp.bfloat16(1), "not equal"),
        (2**62 + 1, 2**62, "not equal"),
        (jax.random.key(1), jax.random.key(2), "not equal"),
        (np.array([b"x"], object), np.array([b"y"], object), r"\[b'x'\] instead of"),
        (np.nan, 1.0, "nan"),
    ],
)
def test_what_differs_fails_with_its_path(found, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_same(found, expected)


def test_dtypes_may_differ_where_the_test_says_so():
    assert_same(np.ones(2), jnp.ones(2), dtypes=False)
