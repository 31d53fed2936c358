"""Looking inside: why a function was traced again, and how a model is sharded.

Importing this package loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .retrace import explain_retraces as explain_retraces
    from .sharding import ShardingReport as ShardingReport, sharding_report as sharding_report

_PLACES = {"ShardingReport": "sharding", "explain_retraces": "retrace", "sharding_report": "sharding"}

__all__ = ["ShardingReport", "explain_retraces", "sharding_report"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
