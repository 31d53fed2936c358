"""``export_manager`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.export_manager import *  # noqa: F403
