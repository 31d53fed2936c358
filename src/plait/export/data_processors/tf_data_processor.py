"""``data_processors.tf_data_processor`` of Orbax Export; ``orbax/`` defines it."""

from ..orbax.data_processors import TfDataProcessor as TfDataProcessor
