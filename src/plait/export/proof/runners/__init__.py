"""Scripts that run an exported file in a separate process."""
