"""``data_processors.tf_data_processor`` of Orbax Export, which stands in ``orbax/``."""

from ..orbax.data_processors import TfDataProcessor as TfDataProcessor
