"""``dtensor_utils`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.dtensor_utils import *  # noqa: F403
