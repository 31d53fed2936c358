"""``data_processors.jax_data_processor`` of Orbax Export; ``orbax/`` defines it."""

from ..orbax.data_processors import JaxDataProcessor as JaxDataProcessor
