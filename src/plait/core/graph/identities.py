"""Which object is which on the two sides of a crossing, by the numbers that walks give.

Outside, a walk gives every object a number, the outer index. Inside, private objects are built under the same numbers.
When they are walked again, each that is still reachable gets a new index, and the pairs are all that has to come out:
they say which of the caller's own objects the new structure is made of. Update contexts and the calls of transforms do
the same with them. (rules U8 to U14)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .flatten import RefMap


def moved_indices(inner: Mapping[int, Any], new: RefMap) -> dict[int, int]:
    """Outer index → new index, of the private objects that a second walk met."""
    return {outer: number for outer, item in inner.items() if (number := new.get(item)) is not None}


def own_objects(outer: RefMap, moved: Mapping[int, int]) -> dict[int, Any]:
    """New index → the caller's own object, for a builder to refill."""
    objects = {index: item for item, index in outer.items()}
    return {new: objects[old] for old, new in moved.items()}
