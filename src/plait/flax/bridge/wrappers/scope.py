"""The scope of one ``init`` or ``apply``: its random streams and mutable collections. (rule B35)"""

from __future__ import annotations

import threading
from typing import Any

from ....core.nodes.pytree import Pytree
from ....core.rngs import Rngs
from ....core.settings import Restoring


class Scope(Pytree):
    """The random streams and the mutable collections of one ``init`` or ``apply``; shared by all modules in it.

    Args:
        rngs: the streams.
        mutable: which collections may change: a bool, a name, several names, or Flax's ``DenyList``.

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
    """Whether a collection matches one of Linen's collection filters."""
    if isinstance(mutable, bool):
        return mutable
    if isinstance(mutable, str):
        return mutable == collection
    deny = getattr(mutable, "deny", None)
    if deny is not None:
        return not in_filter(deny, collection)
    return collection in mutable


class _Scopes(threading.local):
    innermost: Scope | None = None


_scopes = _Scopes()


def entered(scope: Scope) -> Restoring:
    """Inside the block, ``init`` or ``apply`` runs in this scope and thread."""
    return Restoring(_scopes, innermost=scope)


def current_scope() -> Scope | None:
    """The scope of this thread's innermost ``init`` or ``apply``."""
    return _scopes.innermost
