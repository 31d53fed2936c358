"""``jax_module`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.jax_module import *  # noqa: F403
