"""Runs exported files in separate processes, compares them with their originals, and describes them."""
