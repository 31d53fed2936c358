"""``obm_configs`` of Orbax Export, which stands in ``orbax/``."""

from .orbax.obm_configs import __getattr__ as __getattr__
