import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from tests.nn.twins import assert_pair_agrees, flax_nnx, some_input


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=3)
@given(
    st.sampled_from([0.01, 0.25, -0.5]),
    st.sampled_from([("float32", None), ("bfloat16", None), ("float32", "bfloat16")]),
    st.sampled_from([(), (3,), (2, 3)]),
)
def test_prelu_is_flax_s(slope, dtypes, shape):
    """L26, L3."""
    x_dtype, dtype = dtypes
    ours, theirs = (lib.PReLU(slope, dtype=dtype) for lib in (plait, flax_nnx()))
    assert_pair_agrees(ours, theirs, some_input(*shape, dtype=x_dtype), {"rtol": 2e-2, "atol": 2e-2})


def test_integers_are_computed_as_floats():
    """L3; Flax rounds the slope to an integer here."""
    np.testing.assert_allclose(plait.PReLU(0.5)(jnp.array([-3, 4])), [-1.5, 4.0])


def test_metadata_reaches_the_slope():
    """L4."""
    assert plait.PReLU(negative_slope_metadata={"tag": 1}).negative_slope.get_metadata("tag") == 1
