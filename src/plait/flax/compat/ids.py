"""Identifiers that are unique in a process, which Flax gives to programs that number their own objects."""

from __future__ import annotations

import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class UUID:
    """An identifier; each differs from all others.

    Example:
        >>> from plait.flax.compat.ids import uuid
        >>> first, second = uuid(), uuid()
        >>> first == first, first == second
        (True, False)
    """

    id: int


class UUIDManager:
    """What makes identifiers: a call returns a new one."""

    numbers = itertools.count()

    def __call__(self) -> UUID:
        return UUID(next(self.numbers))


uuid = UUIDManager()
