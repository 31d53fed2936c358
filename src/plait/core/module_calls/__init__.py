"""Which module is running: calls of modules observed, located and named."""
