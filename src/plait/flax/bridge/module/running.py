"""The stack of running modules: which ``setup`` or method of a ``bridge.Module`` this thread is in. (rules B35, B36)"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any

from ....core.settings import Restoring


class AttrPriority(enum.IntEnum):
    """Which of two attributes with the same variable names it: the one with the lower number."""

    HIGH = 0
    INIT_PARENT = 20
    DEFAULT = 50
    LOW = 100


@dataclasses.dataclass(eq=False)
class ModuleStackEntry:
    """A module whose ``setup`` or method is running."""

    module: Any
    in_compact: bool
    # Whether a child of the module is being constructed; modules made in its constructor are not the module's.
    constructing: bool
    # The number of unnamed children of each class, and the names that this run of the method has used.
    type_counter: dict[str, int] = dataclasses.field(default_factory=dict)
    names: set[str] = dataclasses.field(default_factory=set)
    # Plait modules made during setup, to be filled once they are assigned; by id, with the object itself.
    unfilled: dict[int, Any] = dataclasses.field(default_factory=dict)


class _Running(threading.local):
    innermost: ModuleStackEntry | None = None


_running = _Running()


@contextlib.contextmanager
def running(module: Any, *, in_compact: bool = False, constructing: bool = False) -> Iterator[ModuleStackEntry]:
    """Inside the block, this thread runs ``setup``, a compact method, or a method called by ``init`` or ``apply``."""
    entry = ModuleStackEntry(module, in_compact, constructing)
    with Restoring(_running, innermost=entry):
        yield entry


def current_context() -> ModuleStackEntry | None:
    """The context of this thread's innermost ``bridge.Module``; ``None`` outside of any.

    Example:
        >>> plait.bridge.current_context() is None
        True
    """
    return _running.innermost


def current_module() -> Any:
    """The innermost running ``bridge.Module`` of this thread, or ``None``.

    A module runs during its ``setup``, its compact methods, and the method that ``init`` or ``apply`` calls.

    Example:
        >>> plait.bridge.current_module() is None
        True
    """
    entry = current_context()
    return None if entry is None else entry.module
