"""``utils`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.utils import *  # noqa: F403
