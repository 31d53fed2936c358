"""Comparing two implementations of one model. Importing this package loads nothing else.

``plait.compare`` is the function; the names here are the classes of its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .causes import Cause as Cause
    from .comparison import Compared as Compared, Comparison as Comparison, Departure as Departure, compare as compare
    from .differences import Difference as Difference

_PLACES = {
    "Cause": "causes",
    "Compared": "comparison",
    "Comparison": "comparison",
    "Departure": "comparison",
    "Difference": "differences",
    "compare": "comparison",
}

__all__ = ["Cause", "Compared", "Comparison", "Departure", "Difference", "compare"]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
