"""What SavedModels and LiteRT files share: names, readers, and the operation that calls a function."""
