"""Shared by SavedModels and LiteRT files: names, readers, and the operation that calls a function."""
