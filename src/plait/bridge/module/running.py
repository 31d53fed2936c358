"""The modules that run: which ``setup`` or method of a ``bridge.Module`` this thread is in. (rules B35, B36)"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any


class AttrPriority(enum.IntEnum):
    """Which of two attributes that hold one variable names it: the lower number."""

    HIGH = 0
    INIT_PARENT = 20
    DEFAULT = 50
    LOW = 100


@dataclasses.dataclass(eq=False)
class ModuleStackEntry:
    """A module whose ``setup`` or method runs now."""

    module: Any
    in_compact: bool = False
    # Whether a child of the module is being constructed; what its constructor makes is not the module's.
    constructing: bool = False
    # How many unnamed children of each class there are, and the names that this run of the method has given.
    type_counter: dict[str, int] = dataclasses.field(default_factory=dict)
    names: set[str] = dataclasses.field(default_factory=set)
    # Plait modules made during setup, which are filled once they are assigned; by id, with the object itself.
    unfilled: dict[int, Any] = dataclasses.field(default_factory=dict)


class _Running(threading.local):
    def __init__(self) -> None:
        self.entries: list[ModuleStackEntry] = []


_running = _Running()


@contextlib.contextmanager
def running(module: Any, *, in_compact: bool = False, constructing: bool = False) -> Iterator[ModuleStackEntry]:
    """``setup``, a compact method, or what ``init`` or ``apply`` calls, runs in this thread until the end."""
    entry = ModuleStackEntry(module, in_compact, constructing)
    _running.entries.append(entry)
    try:
        yield entry
    finally:
        _running.entries.pop()


def current_context() -> ModuleStackEntry | None:
    """What this thread's innermost ``bridge.Module`` is doing, or ``None`` outside of all.

    Example:
        >>> plait.bridge.current_context() is None
        True
    """
    return _running.entries[-1] if _running.entries else None


def current_module() -> Any:
    """The innermost ``bridge.Module`` that runs in this thread, or ``None``: its ``setup``, a compact method of it, or
    the method that ``init`` or ``apply`` calls.

    Example:
        >>> plait.bridge.current_module() is None
        True
    """
    entry = current_context()
    return None if entry is None else entry.module
