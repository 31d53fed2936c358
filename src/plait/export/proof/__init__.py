"""Exported files run apart, compared with their originals, and described."""
