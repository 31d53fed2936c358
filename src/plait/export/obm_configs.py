"""``obm_configs`` of Orbax Export; ``orbax/`` defines it."""

from .orbax.obm_configs import __getattr__ as __getattr__
