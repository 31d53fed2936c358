"""Stacks of equal layers: stored with a leading axis, run as one loop, and seen as a list."""
