"""Differences of arrays, in whatever order their axes are."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from plait.export.proof.compare import relative_tolerance
from plait.inspect.compare.differences import align, difference_of

ARRAY = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
ORDERS = {
    "the same": lambda x: x,
    "channels first": lambda x: np.moveaxis(x, -1, 1),
    "heads joined": lambda x: x.reshape(2, 3, 20),
    "second axis first": lambda x: np.swapaxes(x, 0, 1),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_second_array_is_brought_into_the_order_of_the_first(order):
    np.testing.assert_array_equal(align(order(ARRAY), ARRAY), ARRAY)
    assert difference_of(ARRAY, order(ARRAY), 1e-5).is_agreement


@given(st.permutations(range(3)))
def test_of_several_orders_that_fit_the_nearest_is_taken(axes):
    cube = ARRAY[0, :, :3, :3]
    moved = cube.transpose(axes)
    aligned = align(moved, cube)
    assert aligned is not None
    apart = np.abs(aligned - cube).max()
    assert apart <= np.abs(moved - cube).max()


def test_other_sizes_are_a_difference():
    found = difference_of(ARRAY, ARRAY[:1], 1e-5)
    assert not found.is_agreement
    assert found.shapes == ((2, 3, 4, 5), (1, 3, 4, 5))


def test_arrays_without_entries_agree():
    found = difference_of(ARRAY[:, :0], ARRAY[:, :0], 1e-5)
    assert found.is_agreement
    assert (found.largest, found.scale, found.at, found.values) == (0.0, 0.0, (), None)


def test_the_place_of_the_largest_difference_is_told_with_both_values():
    other = ARRAY.copy()
    other[1, 2, 0, 3] += 1
    found = difference_of(ARRAY, other, relative_tolerance(np.float32))
    assert found.at == (1, 2, 0, 3)
    assert found.largest == pytest.approx(1, rel=1e-6)
    assert found.values == (float(ARRAY[found.at]), float(other[found.at]))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_nan_agrees_with_itself_alone(value):
    broken = ARRAY.copy()
    broken[0, 0, 0, 0] = value
    assert difference_of(broken, broken.copy(), 1e-5).is_agreement
    assert not difference_of(ARRAY, broken, 1e3).is_agreement


def test_integers_agree_if_they_are_equal():
    assert difference_of(np.arange(3), np.arange(3), 1.0).is_agreement
    assert not difference_of(np.arange(3), np.arange(1, 4), 1.0).is_agreement


def test_other_sizes_are_named_in_their_order():
    assert str(difference_of(ARRAY, ARRAY[:1], 1e-5)) == "shapes (2, 3, 4, 5) and (1, 3, 4, 5)"
