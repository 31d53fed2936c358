import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError
from tests.nn.twins import flax_nnx, some_input, users_promotion

POOLS = ["max_pool", "min_pool", "avg_pool"]


@pytest.mark.oracle
@settings(max_examples=8)
@given(
    st.sampled_from(POOLS),
    st.integers(1, 3),
    st.sampled_from([None, (1, 2), (2, 2)]),
    st.sampled_from(["SAME", "VALID", ((1, 0), (0, 1))]),
    st.sampled_from([(), (2,), (2, 1)]),
)
def test_pooling_is_flax_s(name, size, strides, padding, batch):
    assume(isinstance(padding, str) or len(batch) < 2)  # Flax then forgets to pad the batch axes
    x = some_input(*batch, 5, 4, 2)
    with users_promotion():
        expected = getattr(flax_nnx(), name)(x, (size, 2), strides, padding)
    np.testing.assert_allclose(getattr(plait, name)(x, (size, 2), strides, padding), expected, rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("name", POOLS)
def test_by_default_windows_move_by_one_and_nothing_is_padded(name):
    """F2, F3: ``strides=None``, the default, is 1 in each axis."""
    x, window = some_input(2, 5, 4, 2), (2, 3)
    pooled = getattr(plait, name)(x, window)
    assert pooled.shape == (2, 4, 2, 2)
    np.testing.assert_array_equal(pooled, getattr(plait, name)(x, window, (1, 1), "VALID"))
    with users_promotion():
        np.testing.assert_allclose(pooled, getattr(flax_nnx(), name)(x, window), rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "float32"])
@pytest.mark.parametrize("name", ["max_pool", "min_pool"])
def test_the_dtype_stays(name, dtype):
    x = jnp.arange(10).reshape(1, 5, 2).astype(dtype)
    with users_promotion():
        expected = getattr(flax_nnx(), name)(x, (2,))
    y = getattr(plait, name)(x, (2,))
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.oracle
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_averages_over_real_elements_are_flax_s(batch):
    x = some_input(*batch, 5, 2)
    with users_promotion():
        expected = flax_nnx().avg_pool(x, (3,), padding="SAME", count_include_pad=False)
    y = plait.avg_pool(x, (3,), padding="SAME", count_include_pad=False)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("name", POOLS)
def test_gradients_are_flax_s(name):
    x = some_input(2, 6, 3)

    def loss(pool):
        return lambda x: (jnp.cos(jnp.arange(18.0).reshape(2, 3, 3)) * pool(x, (2,), (2,))).sum()

    with users_promotion():
        expected = jax.grad(loss(getattr(flax_nnx(), name)))(x)
    np.testing.assert_allclose(jax.grad(loss(getattr(plait, name)))(x), expected, rtol=1e-6)


def test_padding_never_wins_a_maximum_of_integers():
    x = jnp.full((3, 1), -5, jnp.int8)
    assert plait.max_pool(x, (2,), padding=((1, 1),))[:, 0].tolist() == [-5] * 4


def test_any_reduction_works():
    product = plait.pool(jnp.arange(1.0, 5.0).reshape(4, 1), 1.0, jax.lax.mul, (2,), (2,), "VALID")
    assert product[:, 0].tolist() == [2.0, 12.0]


def test_too_few_axes_name_the_shape_and_the_window():
    with pytest.raises(ShapeError, match=r"\(4, 2\) and window_shape=\(2, 2\)\s+expected +at least 3 axes"):
        plait.max_pool(jnp.ones((4, 2)), (2, 2))


@pytest.mark.parametrize("strides", [2, (1, 1)])
def test_strides_must_be_as_many_as_the_window_s_axes(strides):
    with pytest.raises(ArgumentError, match=r"strides=.* and window_shape=\(2,\)"):
        plait.max_pool(jnp.ones((2, 4, 2)), (2,), strides)


@pytest.mark.parametrize("padding", [1, (1,), ((1, 1), (1, 1)), [(1, 1), 2], "CAUSAL"])
def test_padding_must_be_a_pair_for_each_axis_of_the_window(padding):
    with pytest.raises(ArgumentError, match=r"found +padding="):
        plait.max_pool(jnp.ones((2, 4, 2)), (2,), padding=padding)


@pytest.mark.oracle
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("strides", [[2, 1], np.array([2, 1]), (np.int64(2), 1)], ids=["list", "NumPy", "NumPy's one"])
def test_windows_and_strides_may_be_lists_and_numpy_s(name, strides):
    x = some_input(2, 5, 4, 2)
    with users_promotion():
        expected = getattr(flax_nnx(), name)(x, (2, 3), (2, 1))
    for window in ([2, 3], np.array([2, 3])):
        np.testing.assert_allclose(getattr(plait, name)(x, window, strides=strides), expected, rtol=1e-6)


@pytest.mark.parametrize("strides", [2, (2,), np.int64(2)], ids=repr)
def test_strides_that_do_not_fit_their_window_are_told(strides):
    with pytest.raises(
        ArgumentError, match=r"strides=.* and window_shape=\(2, 2\)(.|\n)*do +for example strides=\(2, 2\)"
    ):
        plait.max_pool(some_input(2, 5, 4, 2), (2, 2), strides=strides)
