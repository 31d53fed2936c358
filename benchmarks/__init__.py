"""Measurements of plait beside plain JAX, Flax and Equinox; run ``python -m benchmarks`` from the repository root."""
