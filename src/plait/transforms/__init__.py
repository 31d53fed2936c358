"""Lifted transforms: JAX's transforms, on functions of graphs."""
