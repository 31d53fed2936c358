"""Partitioning: from the axis names of variables to specs, shardings and devices."""
