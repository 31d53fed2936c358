"""Partitioning: from the axis names of variables to specs, shardings, devices and processes."""

from .activations import out_sharding as out_sharding, with_sharding_constraint as with_sharding_constraint
from .creation import create_sharded as create_sharded
from .processes import connect_processes as connect_processes
from .recipes import rules_for as rules_for
from .rule_checks import check_rules as check_rules

__all__ = [
    "check_rules",
    "connect_processes",
    "create_sharded",
    "out_sharding",
    "rules_for",
    "with_sharding_constraint",
]
