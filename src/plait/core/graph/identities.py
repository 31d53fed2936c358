"""Matching the objects inside and outside of a transform, by the indices that walks assign.

Outside, a walk gives every object a number, the outer index. Inside, private objects are created with the same numbers.
When they are walked again, each object that is still reachable gets a new index. The pairs of old and new index are all
that has to be returned: they determine which of the caller's own objects the new structure consists of. Update contexts
and calls of transforms both use them. (rules U8 to U14)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .flatten import RefMap


def moved_indices(inner: Mapping[int, Any], new: RefMap) -> dict[int, int]:
    """Outer index → new index, for the private objects that a second walk visited."""
    return {outer: number for outer, item in inner.items() if (number := new.get(item)) is not None}


def own_objects(outer: RefMap, moved: Mapping[int, int]) -> dict[int, Any]:
    """New index → the caller's own object, for a builder to refill."""
    objects = {index: item for item, index in outer.items()}
    return {new: objects[old] for old, new in moved.items()}
