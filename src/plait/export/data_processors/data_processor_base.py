"""``data_processors.data_processor_base`` of Orbax Export, which stands in ``orbax/``."""

from ..orbax.data_processors import DataProcessor as DataProcessor
