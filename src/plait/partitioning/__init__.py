"""Partitioning: from the axis names of variables to specs, shardings and devices."""

from .activations import out_sharding as out_sharding, with_sharding_constraint as with_sharding_constraint
from .processes import connect_processes as connect_processes
from .recipes import rules_for as rules_for
