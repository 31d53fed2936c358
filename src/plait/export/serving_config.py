"""The name of Orbax Export's ``serving_config``; ``orbax/`` defines it."""

from .orbax.serving import ServingConfig as ServingConfig
