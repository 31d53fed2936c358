"""Changing existing models, and writing down how they are made."""
