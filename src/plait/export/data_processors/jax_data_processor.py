"""``data_processors.jax_data_processor`` of Orbax Export, which stands in ``orbax/``."""

from ..orbax.data_processors import JaxDataProcessor as JaxDataProcessor
