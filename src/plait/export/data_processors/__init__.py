"""``data_processors`` of Orbax Export, which stands in ``orbax/``."""

from ..orbax.data_processors import (
    DataProcessor as DataProcessor,
    JaxDataProcessor as JaxDataProcessor,
    TfDataProcessor as TfDataProcessor,
)
