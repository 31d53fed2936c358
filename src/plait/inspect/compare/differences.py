"""The difference of two arrays, and whether it is rounding.

The measure is that of exports (``export/proof/compare.py``): the largest difference, relative to the largest value, may
be a fixed number of roundings of the dtype. Two libraries may order the axes of an activation differently (channels
last or first, time or batch first, heads split or joined): the second array is transposed to the order of the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from ...export.proof.compare import agree, difference, largest_of, wide

# Values that are smaller than the inputs by this factor count as zero.
_SMALL = 1e-4


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two arrays.

    Attributes:
        largest: the largest difference of two entries; infinite if the shapes do not match.
        scale: the largest value.
        tolerance: the largest difference that is allowed.
        at: the index of the largest difference, in the first array.
        values: the two values there; ``None`` if there are none.
        shapes: the shapes of both arrays, if they do not match.
    """

    largest: float
    scale: float
    tolerance: float
    at: tuple[int, ...] = ()
    values: tuple[complex, complex] | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def is_agreement(self) -> bool:
        return self.is_within(1)

    def is_within(self, part: float) -> bool:
        """Whether it is within a fraction of the tolerance."""
        return bool(self.shapes is None and agree(np.asarray(self.largest), part * self.tolerance))

    @property
    def excess(self) -> float:
        """The difference in units of the tolerance."""
        return 0.0 if self.largest == 0 else self.largest / self.tolerance if self.tolerance else np.inf

    def __str__(self) -> str:
        if self.shapes is not None:
            return f"shapes {self.shapes[0]} and {self.shapes[1]}"
        return f"{self.largest:.3g}, for values up to {self.scale:.3g} (tolerance {self.tolerance:.3g})"


def difference_of(a: np.ndarray, b: np.ndarray, tolerance: float, smallest: float = 0.0) -> Difference:
    """The difference of two arrays.

    Args:
        a, b: the arrays; the second may have its axes in the order of another library.
        tolerance: relative to the largest value; not used for integers and booleans.
        smallest: the largest value of the inputs.
    """
    aligned = align(b, a)
    if aligned is None:
        return Difference(np.inf, largest_of(a), 0.0, shapes=(a.shape, b.shape))
    apart = difference(a, aligned)
    exact = not (jnp.issubdtype(a.dtype, jnp.inexact) or jnp.issubdtype(b.dtype, jnp.inexact))
    scale = max(largest_of(a), largest_of(b))
    allowed = 0.0 if exact else tolerance * max(scale, _SMALL * smallest)
    if not apart.size:
        return Difference(0.0, scale, allowed)
    place = int(apart.argmax())
    at = tuple(int(index) for index in np.unravel_index(place, a.shape))
    return Difference(float(apart[place]), scale, allowed, at, (wide(a)[at].item(), wide(aligned)[at].item()))


def align(b: np.ndarray, a: np.ndarray) -> np.ndarray | None:
    """``b`` with its axes in the order of ``a``: of the orders with the right shape, the closest; or ``None``."""
    return min(_orders(b, a), key=lambda candidate: difference(a, candidate).max(initial=0.0), default=None)


def _orders(b: np.ndarray, a: np.ndarray) -> Iterator[np.ndarray]:
    orders = [b]
    if b.ndim >= 3 and b.ndim == a.ndim:
        orders += [np.moveaxis(b, 1, -1), np.moveaxis(b, -1, 1), np.swapaxes(b, 0, 1)]
    fitting = [each for each in orders if each.shape == a.shape]
    yield from fitting
    if not fitting and b.size == a.size:
        yield b.reshape(a.shape)
