"""Models and values as text."""
