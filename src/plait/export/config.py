"""``config`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.config import *  # noqa: F403
