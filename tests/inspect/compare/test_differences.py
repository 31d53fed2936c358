"""Differences of arrays, as they are; beside torch, also with its channels moved."""

import jax.numpy as jnp
import numpy as np
import pytest

from plait.export.proof.compare import relative_tolerance
from plait.inspect.compare.differences import difference_of

ARRAY = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
ORDERS = {
    "channels first": lambda x: np.moveaxis(x, -1, 1),
    "heads joined": lambda x: x.reshape(2, 3, 20),
    "second axis first": lambda x: np.swapaxes(x, 0, 1),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_another_order_of_axes_is_a_difference(order):
    assert difference_of(ARRAY, order(ARRAY), 1e-5).shapes == (ARRAY.shape, order(ARRAY).shape)
    square = ARRAY[:, :2, :2, :2].reshape(2, 2, 2, 2)
    assert difference_of(square, np.swapaxes(square, 0, 1), 1e-5).largest > 0.1


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4), (2, 3, 3, 3)])
def test_beside_torch_channels_may_be_in_its_place(shape):
    ours, theirs = ARRAY.ravel()[: np.prod(shape)].reshape(shape), (1, -1)
    for a, b, channels in ((ours, np.moveaxis(ours, -1, 1), theirs), (np.moveaxis(ours, -1, 1), ours, theirs[::-1])):
        found = difference_of(a, b, 1e-5, channels=channels)
        assert (found.largest, found.is_moved) == (0, True)
        assert str(found).endswith(", with the channels of torch moved")
    assert not difference_of(ours, ours, 1e-5, channels=theirs).is_moved
    assert not difference_of(ours, np.swapaxes(ours, 0, 1), 1e-5, channels=theirs).is_agreement
    assert not difference_of(ours, ours.reshape(*shape[:-2], -1), 1e-5, channels=theirs).is_agreement


def test_a_matrix_has_no_channels_to_move():
    square = ARRAY[0, 0, :4, :4]
    assert not difference_of(square, square.T, 1e-5, channels=(1, -1)).is_agreement


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
    found = difference_of(np.array([3, 123456789]), np.array([3, 1]), 1.0)
    assert not found.is_agreement
    assert str(found) == "123456788, for values up to 123456789 (tolerance 0)"
    assert found.values == (123456789, 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_beyond_2_to_the_53_are_compared_exactly(dtype):
    a, b = np.array([5, 2**53, 2**62], dtype), np.array([5, 2**53 + 1, 2**62], dtype)
    found = difference_of(a, b, 1e-5)
    assert not found.is_agreement
    assert (found.largest, found.at, found.values) == (1, (1,), (2**53, 2**53 + 1))
    assert difference_of(np.array([-(2**63)]), np.array([2**63 - 1]), 1e-5).largest == 2**64 - 1


def test_other_sizes_are_named_in_their_order():
    assert str(difference_of(ARRAY, ARRAY[:1], 1e-5)) == "shapes (2, 3, 4, 5) and (1, 3, 4, 5)"
