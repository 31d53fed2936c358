"""``constants`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.constants import *  # noqa: F403
