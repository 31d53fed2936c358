"""``typing`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.typing import *  # noqa: F403
