"""Looking at a model while it runs."""
