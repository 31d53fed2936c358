"""The difference of two arrays, and whether it is rounding.

The measure is that of exports (``export/proof/compare.py``): the largest difference, relative to the largest value, may
be a fixed number of roundings of the dtype. Arrays are compared as they are. Only beside torch, where channels are axis
1 and not the last one, are they also compared with the channels moved.
"""

from __future__ import annotations

import dataclasses

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
        names: the names of both outputs (keys, fields and indices), if they do not match.
        is_moved: whether axis 1 of torch's array was compared with the last axis of the other.
    """

    largest: float
    scale: float
    tolerance: float
    at: tuple[int, ...] = ()
    values: tuple[complex, complex] | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    is_moved: bool = False

    @property
    def is_agreement(self) -> bool:
        return self.is_within(1)

    def is_within(self, part: float) -> bool:
        """Whether it is within a fraction of the tolerance."""
        return bool(agree(np.asarray(self.largest), part * self.tolerance))

    @property
    def excess(self) -> float:
        """The difference in units of the tolerance."""
        return 0.0 if self.largest == 0 else self.largest / self.tolerance if self.tolerance else np.inf

    def __str__(self) -> str:
        if self.shapes is not None:
            return f"shapes {self.shapes[0]} and {self.shapes[1]}"
        if self.names is not None:
            a, b = (", ".join(name or "an array" for name in names) for names in self.names)
            return f"{a} in a and {b} in b"
        moved = ", with the channels of torch moved" if self.is_moved else ""
        largest, scale = in_digits(self.largest, 3), in_digits(self.scale, 3)
        return f"{largest}, for values up to {scale} (tolerance {self.tolerance:.3g}){moved}"


def in_digits(number: complex, digits: int) -> str:
    """A number with this many digits; an integer with all its digits."""
    return str(number) if isinstance(number, int) else f"{number:.{digits}g}"


def difference_of(
    a: np.ndarray,
    b: np.ndarray,
    tolerance: float,
    smallest: float = 0.0,
    channels: tuple[int, int] | None = None,
) -> Difference:
    """The difference of two arrays.

    Args:
        a, b: the arrays.
        tolerance: relative to the largest value; not used for integers and booleans.
        smallest: the largest value of the inputs.
        channels: the axis of ``b`` that may have its channels, and that of ``a``; ``None`` if both have one layout.
    """
    orders = [b] if channels is None or b.ndim < 3 else [b, np.moveaxis(b, *channels)]
    fitting = [order for order in orders if order.shape == a.shape]
    if not fitting:
        return Difference(np.inf, largest_of(a), 0.0, shapes=(a.shape, b.shape))
    compared = [(order, difference(a, order)) for order in fitting]
    aligned, apart = min(compared, key=lambda each: each[1].max(initial=0.0))
    is_moved = aligned is not b
    exact = not (jnp.issubdtype(a.dtype, jnp.inexact) or jnp.issubdtype(b.dtype, jnp.inexact))
    scale = max(largest_of(a), largest_of(b))
    allowed = 0.0 if exact else tolerance * max(scale, _SMALL * smallest)
    if not apart.size:
        return Difference(0.0, scale, allowed, is_moved=is_moved)
    place = int(apart.argmax())
    at = tuple(int(index) for index in np.unravel_index(place, a.shape))
    if exact:
        x, y = int(a[at]), int(aligned[at])
        return Difference(abs(x - y), int(scale), allowed, at, (x, y), is_moved=is_moved)
    values = wide(a)[at].item(), wide(aligned)[at].item()
    return Difference(float(apart[place]), scale, allowed, at, values, is_moved=is_moved)
