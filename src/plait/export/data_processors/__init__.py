"""Steps of a pipeline before and after a method, for ``ServingConfig(preprocessors=..., postprocessors=...)``."""

from .data_processor_base import DataProcessor as DataProcessor
from .jax_data_processor import JaxDataProcessor as JaxDataProcessor
from .tf_data_processor import TfDataProcessor as TfDataProcessor
