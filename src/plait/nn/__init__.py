"""Layers, one file per family, and what they share."""
