"""Planted faults: how many of them the tests notice. ``make mutate AREA=core N=60``; see ``CONTRIBUTING.md``."""
