"""Example programs: ``plait demo digits``."""
