"""What a ``bridge.Module`` knows while it runs: its scope, and the stack of running modules. (rules B35, B36)"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any

from ..core.objects.module import Pytree
from ..core.objects.rngs import Rngs


class Scope(Pytree):
    """The random streams and the mutable collections of one ``init`` or ``apply``; shared by all modules in it.

    Args:
        rngs: the streams.
        mutable: which collections may change: a bool, a name, several names, or a ``DenyList`` of Flax.

    Example:
        >>> scope = plait.bridge.Scope(plait.Rngs(0), mutable=["batch_stats"])
        >>> scope.is_mutable("batch_stats"), scope.is_mutable("params")
        (True, False)
    """

    def __init__(self, rngs: Rngs, mutable: Any, *, initializing: bool = False) -> None:
        self.rngs = rngs
        self.mutable = tuple(mutable) if isinstance(mutable, (list, set, frozenset)) else mutable
        self.initializing = initializing

    def is_mutable(self, collection: str) -> bool:
        """Whether a collection may change."""
        return in_filter(self.mutable, collection)


def in_filter(mutable: Any, collection: str) -> bool:
    """Whether a collection is in what Linen calls a collection filter."""
    if isinstance(mutable, bool):
        return mutable
    if isinstance(mutable, str):
        return mutable == collection
    deny = getattr(mutable, "deny", None)
    if deny is not None:
        return not in_filter(deny, collection)
    return collection in mutable


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


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[ModuleStackEntry] = []
        self.scopes: list[Scope] = []


stack = _Stack()


@contextlib.contextmanager
def entered(scope: Scope) -> Iterator[None]:
    """``init`` or ``apply`` runs in this scope and thread, until the end."""
    stack.scopes.append(scope)
    try:
        yield
    finally:
        stack.scopes.pop()


def current_scope() -> Scope | None:
    """The scope of the innermost ``init`` or ``apply`` of this thread."""
    return stack.scopes[-1] if stack.scopes else None


@contextlib.contextmanager
def running(module: Any, *, in_compact: bool = False) -> Iterator[ModuleStackEntry]:
    """``setup``, a compact method, or what ``init`` or ``apply`` calls, runs in this thread until the end."""
    entry = ModuleStackEntry(module, in_compact)
    stack.entries.append(entry)
    try:
        yield entry
    finally:
        stack.entries.pop()


def current_context() -> ModuleStackEntry | None:
    """What this thread's innermost ``bridge.Module`` is doing, or ``None`` outside of all.

    Example:
        >>> plait.bridge.current_context() is None
        True
    """
    return stack.entries[-1] if stack.entries else None


def current_module() -> Any:
    """The innermost ``bridge.Module`` that runs in this thread, or ``None``: its ``setup``, a compact method of it, or
    the method that ``init`` or ``apply`` calls.

    Example:
        >>> plait.bridge.current_module() is None
        True
    """
    entry = current_context()
    return None if entry is None else entry.module
