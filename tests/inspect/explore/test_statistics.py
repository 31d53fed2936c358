"""Statistics, histograms and differences against float64 formulas over all numbers at once. (W4, W12)"""

import math
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from plait.inspect.explore import statistics as module
from plait.inspect.explore.statistics import difference, histogram, statistics
from plait.util.dtypes import is_number_dtype

DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", jnp.bfloat16, jnp.float8_e4m3fn]
ARRAYS = hnp.arrays(
    st.sampled_from(["float32", "float64", "float16"]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=9),
    elements=st.floats(width=16),
)


@pytest.fixture(autouse=True)
def small_parts():
    """Parts of four numbers, so that small arrays have several."""
    with mock.patch.object(module, "_PART", 4):
        yield


@given(ARRAYS)
def test_statistics_are_those_of_the_finite_numbers(array):
    found = statistics(array)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    assert (found.count, found.zeros) == (array.size, int((numbers == 0).sum()))
    assert (found.nans, found.infinities) == (int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum()))
    if not finite.size:
        assert (found.low, found.high, found.mean, found.std) == (None,) * 4
        return
    assert (found.low, found.high) == (finite.min(), finite.max())
    scale = float(np.abs(finite).max())
    assert found.mean == pytest.approx(math.fsum(finite) / finite.size, rel=1e-12, abs=1e-13 * scale)
    assert found.std == pytest.approx(np.std(finite), rel=1e-9, abs=1e-12 * scale)


@given(ARRAYS)
def test_a_histogram_counts_each_finite_number_once(array):
    found = statistics(array)
    if found.low is None or found.high is None:
        return
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    counts = histogram(array, found.low, found.high, bins=7)
    assert (len(counts), sum(counts)) == (7, finite.size)
    if found.low < found.high and (found.high - found.low) > 1e-3:  # NumPy rounds the ends of bins its own way
        expected, edges = np.histogram(finite, bins=7, range=(found.low, found.high))
        at_an_edge = min(abs(finite[:, None] - edges[None, 1:-1]).min(initial=1), 1)
        if at_an_edge > 1e-9 * (found.high - found.low):
            assert counts == expected.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_numbers_has_statistics(dtype):
    array = np.asarray([0, 1, 1, 0, 1, 1, 1, 1]).astype(dtype)
    assert is_number_dtype(array.dtype)
    found = statistics(array)
    assert (found.low, found.high, found.mean, found.zeros) == (0, 1, 0.75, 2)
    assert found.std == pytest.approx(math.sqrt(0.1875))


def test_complex_numbers_count_by_their_magnitude():
    assert statistics(np.array([3 + 4j])).high == 5


def test_numbers_near_the_ends_of_float64_do_not_overflow():
    array = np.array([1.5e308, -1.5e308, 1.5e308, -1.5e308])
    found = statistics(array)
    assert (found.mean, found.std) == (0, pytest.approx(1.5e308))
    assert sum(histogram(array, -1.5e308, 1.5e308)) == 4
    assert statistics(np.full(7, 1e-320)).std == pytest.approx(0, abs=1e-320)


@given(ARRAYS.flatmap(lambda a: st.tuples(st.just(a), hnp.arrays(a.dtype, a.shape, elements=st.floats(width=16)))))
def test_differences_are_those_of_the_numbers_that_are_finite_in_both(pair):
    first, second = (each.astype(np.float64) for each in pair)
    found = difference(*pair)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    assert found.changed == int((~same).sum())
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        assert found.largest is None
        return
    a, b = first[both], second[both]
    assert found.largest == np.abs(a - b).max()
    assert found.mean == pytest.approx(np.abs(a - b).mean())
    larger = max(np.linalg.norm(a), np.linalg.norm(b))
    assert found.relative == pytest.approx(np.linalg.norm(a - b) / larger if larger else 0)
