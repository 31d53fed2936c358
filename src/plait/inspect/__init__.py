"""Looking inside: why a function was traced again, how a model is sharded, what it costs.

Importing this package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .cost import CostReport as CostReport, ModuleCost as ModuleCost
    from .display import long_repr as long_repr
    from .retrace import explain_retraces as explain_retraces
    from .sharding import ShardingReport as ShardingReport, sharding_report as sharding_report
    from .tabulate import TableRow as TableRow

_NAMES = {
    "cost": "CostReport ModuleCost",
    "display": "long_repr",
    "retrace": "explain_retraces",
    "sharding": "ShardingReport sharding_report",
    "tabulate": "TableRow",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
