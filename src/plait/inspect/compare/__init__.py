"""Comparing two implementations of one model. Importing this package loads nothing else.

``plait.compare`` is the function; the names here are the classes of its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .comparison import Compared as Compared, Comparison as Comparison, Departure as Departure, compare as compare
    from .differences import Difference as Difference

_NAMES = {
    "comparison": "Compared Comparison Departure compare",
    "differences": "Difference",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
