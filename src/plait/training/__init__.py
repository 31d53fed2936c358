"""Training: the optimizer, metrics, and averages of parameters."""
