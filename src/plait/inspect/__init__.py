"""Looking into models: differences of structure, and why a function was traced again."""
