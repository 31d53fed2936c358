"""Looking inside: why a function was traced again, how a model is sharded, what it costs.

Importing this package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .cost import CostReport as CostReport, ModuleCost as ModuleCost
    from .display import long_repr as long_repr
    from .retrace import explain_retraces as explain_retraces
    from .sharding import ShardingReport as ShardingReport, sharding_report as sharding_report
    from .tabulate import TableRow as TableRow

_PLACES = {
    "CostReport": "cost",
    "ModuleCost": "cost",
    "ShardingReport": "sharding",
    "TableRow": "tabulate",
    "explain_retraces": "retrace",
    "long_repr": "display",
    "sharding_report": "sharding",
}

__all__ = ["CostReport", "ModuleCost", "ShardingReport", "TableRow", "explain_retraces", "long_repr", "sharding_report"]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
