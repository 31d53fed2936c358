"""Looking inside: why a function was traced again, and how a model is sharded.

Importing this package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .retrace import explain_retraces as explain_retraces
    from .sharding import ShardingReport as ShardingReport, sharding_report as sharding_report

_PLACES = {"ShardingReport": "sharding", "explain_retraces": "retrace", "sharding_report": "sharding"}

__all__ = ["ShardingReport", "explain_retraces", "sharding_report"]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
