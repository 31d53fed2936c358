"""The names of Orbax Export's ``jax_module``; ``orbax/`` defines them."""

from .orbax.jax_module import JaxModule

__all__ = ["JaxModule"]
