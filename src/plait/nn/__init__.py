"""Layers, one family to a file, and what they share."""
