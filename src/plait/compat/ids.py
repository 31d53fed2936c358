"""Identifiers that are unique in a process, which Flax gives to programs that number their own objects."""

from __future__ import annotations

import itertools

_numbers = itertools.count()


class UUID:
    """An identifier; each differs from all others.

    Example:
        >>> import plait
        >>> first, second = plait.ids.uuid(), plait.ids.uuid()
        >>> first == first, first == second
        (True, False)
    """

    def __init__(self, number: int) -> None:
        self.id = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UUID) and self.id == other.id

    def __hash__(self) -> int:
        return hash((UUID, self.id))

    def __repr__(self) -> str:
        return f"UUID(id={self.id})"


class UUIDManager:
    """What makes identifiers: a call returns a new one."""

    def __call__(self) -> UUID:
        return UUID(next(_numbers))


uuid = UUIDManager()
