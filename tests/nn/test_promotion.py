import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.errors import ArgumentError
from plait.nn.promotion import add_bias, canonicalize_dtype, promote_dtype
from tests.nn.twins import users_promotion

DTYPES = st.sampled_from(["bool", "int8", "int32", "uint8", "bfloat16", "float16", "float32", "complex64"])


@pytest.mark.oracle
@given(st.lists(DTYPES, min_size=1, max_size=3), st.booleans())
def test_the_common_dtype_is_flax_s(names, inexact):
    dtypes = pytest.importorskip("flax.nnx.nn.dtypes")
    arrays = [jnp.ones((), name) for name in names]
    with users_promotion():
        expected = dtypes.canonicalize_dtype(*arrays, inexact=inexact)
    assert canonicalize_dtype(*arrays, None, inexact=inexact) == expected


def test_none_stays_none_and_scalars_follow():
    a, b, c = promote_dtype((1, None, jnp.ones(2, jnp.bfloat16)))
    assert (a.dtype, b, c.dtype) == (jnp.bfloat16, None, jnp.bfloat16)


def test_arrays_that_agree_are_passed_on_as_they_are():
    x, y = jnp.ones(2), jnp.zeros(3)
    assert promote_dtype((x, y))[0] is x


def test_a_dtype_that_is_asked_for_wins():
    assert [a.dtype for a in promote_dtype([np.ones(2), jnp.ones(2)], dtype="bfloat16")] == [jnp.bfloat16] * 2


@pytest.mark.parametrize("dtype", [jnp.int32, "uint8", bool])
def test_an_integer_dtype_is_refused(dtype):
    with pytest.raises(ArgumentError, match=r"found +dtype=(int32|uint8|bool)\s+expected +an inexact dtype"):
        promote_dtype((jnp.ones(2),), dtype=dtype)


def test_a_bias_is_added_in_the_wider_dtype():
    y = add_bias(jnp.ones((2, 3), jnp.bfloat16), jnp.full((3,), 0.001, jnp.float32))
    np.testing.assert_allclose(y, np.full((2, 3), 1.001, np.float32))
