"""Foundations without models: words, paths, warnings, files."""
