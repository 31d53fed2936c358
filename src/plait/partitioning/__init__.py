"""Partitioning: from the axis names of variables to specs, shardings, devices and processes.

Importing this package loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .activations import out_sharding as out_sharding, with_sharding_constraint as with_sharding_constraint
    from .creation import create_sharded as create_sharded
    from .processes.connect import connect_processes as connect_processes
    from .recipes import rules_for as rules_for
    from .rule_checks import check_rules as check_rules

_NAMES = {
    "activations": "out_sharding with_sharding_constraint",
    "creation": "create_sharded",
    "processes.connect": "connect_processes",
    "recipes": "rules_for",
    "rule_checks": "check_rules",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
