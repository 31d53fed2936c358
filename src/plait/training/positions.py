"""Positions of data iterators, as values that do not change when the iterator goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..checkpoint.positions import has_position
from .batches import Batches


class KeptPosition:
    """A position to save, while the iterator itself goes on."""

    def __init__(self, position: Any) -> None:
        self._position = position

    def get_state(self) -> Any:
        return self._position

    def set_state(self, position: Any) -> None:
        self._position = position


def positions_of(data: Any) -> Callable[[], Any]:
    """A function that returns the position of an iterator; ``None`` if it has none."""
    if not has_position(data):
        return lambda: None
    get_state = data.get_state
    # Those of Batches are new each time. Others may be what the iterator itself counts with.
    return get_state if type(data) is Batches else lambda: copied(get_state())


def copied(position: Any) -> Any:
    """A copy of a position, which is bytes, or what JSON can say."""
    if isinstance(position, dict):
        copy = position.copy()
        for name, part in copy.items():
            if type(part) is not int:
                copy[name] = copied(part)
        return copy
    if isinstance(position, list):
        return [copied(part) for part in position]
    if isinstance(position, np.ndarray):  # a number that is counted in place
        return position.copy()
    return bytes(position) if isinstance(position, bytearray) else position
