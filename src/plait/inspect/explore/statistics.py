"""Statistics, histograms and differences of arrays, in a few passes over parts that fit into the processor's cache.

Everything is computed in float64, so the result does not depend on the dtype's range: the squares of float16 values
overflow in float16. Complex numbers count by their magnitude, booleans as 0 and 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

BINS = 48
_PART = 1 << 17  # numbers; as float64 they take a megabyte


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of one array. ``low``, ``high``, ``mean`` and ``std`` are over finite numbers; ``None`` if none."""

    count: int
    low: float | None
    high: float | None
    mean: float | None
    std: float | None
    zeros: int
    nans: int
    infinities: int


@dataclasses.dataclass(frozen=True)
class ArrayDifference:
    """The difference of two arrays with the same shape.

    Attributes:
        changed: how many numbers differ. Two NaNs are equal here.
        largest, mean: the largest and mean absolute difference, over numbers finite in both; ``None`` without any.
        relative: the norm of the difference divided by the larger norm of the two, over the same numbers.
    """

    changed: int
    largest: float | None
    mean: float | None
    relative: float | None


def statistics(array: np.ndarray) -> Statistics:
    """The statistics of an array of numbers."""
    low, high, total, finite = math.inf, -math.inf, 0.0, 0
    zeros = nans = infinities = 0
    for part in _parts(array):
        kept, part_nans = _finite(part)
        zeros += part.size - int(np.count_nonzero(part))
        nans += part_nans
        infinities += part.size - kept.size - part_nans
        if kept.size:
            low, high = min(low, float(kept.min())), max(high, float(kept.max()))
            finite += kept.size
            total += float((kept / array.size).sum())  # divided first, since the sum may be beyond float64
    if not finite:
        return Statistics(array.size, None, None, None, None, zeros, nans, infinities)
    mean = min(max(total * (array.size / finite), low), high)
    scale = max(abs(low - mean) / 2, abs(high - mean) / 2) * 2 or 1.0
    squares = sum(float(np.square((kept - mean) / scale).sum()) for kept, _ in map(_finite, _parts(array)))
    return Statistics(array.size, low, high, mean, scale * math.sqrt(squares / finite), zeros, nans, infinities)


def histogram(array: np.ndarray, low: float, high: float, bins: int = BINS) -> list[int]:
    """The number of an array's finite numbers in each of ``bins`` equal parts of ``[low, high]``."""
    counts = np.zeros(bins, np.int64)
    if low == high:
        counts[bins // 2] = sum(kept.size for kept, _ in map(_finite, _parts(array)))
        return counts.tolist()
    for part in _parts(array):
        kept, _ = _finite(part)
        places = (kept / 2 - low / 2) / (high / 2 - low / 2)  # halves, since the width may be beyond float64
        places = np.minimum((places * bins).astype(np.int64), bins - 1)
        counts += np.bincount(places, minlength=bins)
    return counts.tolist()


def difference(first: np.ndarray, second: np.ndarray) -> ArrayDifference:
    """How two arrays with the same shape differ."""
    changed = compared = 0
    largest, total = 0.0, 0.0
    squares = np.zeros(3)  # of the difference, of the first, of the second
    for a, b in zip(_parts(first), _parts(second), strict=True):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        changed += a.size - int(np.count_nonzero(same))
        both = np.isfinite(a) & np.isfinite(b)
        a, b = a[both], b[both]
        if a.size:
            with np.errstate(over="ignore"):  # a distance beyond float64 is infinite
                distance = np.abs(a - b)
                largest = max(largest, float(distance.max()))
                total += float(distance.sum())
                squares += [float(np.square(each).sum()) for each in (distance, a, b)]
            compared += a.size
    if not compared:
        return ArrayDifference(changed, None, None, None)
    norms = np.sqrt(squares)
    larger = max(norms[1], norms[2])
    relative = float(norms[0] / larger) if larger and math.isfinite(larger) else 0.0 if not norms[0] else None
    return ArrayDifference(changed, largest, total / compared, relative)


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array's numbers as float64, a part at a time."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART]
        if part.dtype.kind == "c":
            part = np.abs(part)
        yield part.astype(np.float64)


def _finite(part: np.ndarray) -> tuple[np.ndarray, int]:
    """The finite numbers, and the number of NaNs."""
    finite = np.isfinite(part)
    if finite.all():
        return part, 0
    return part[finite], int(np.count_nonzero(np.isnan(part)))
