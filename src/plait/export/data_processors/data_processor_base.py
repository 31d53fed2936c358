"""``data_processors.data_processor_base`` of Orbax Export; ``orbax/`` defines it."""

from ..orbax.data_processors import DataProcessor as DataProcessor
