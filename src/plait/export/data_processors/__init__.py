"""The names of Orbax Export's ``data_processors``; ``orbax/`` defines them."""

from ..orbax.data_processors import DataProcessor, JaxDataProcessor, TfDataProcessor

__all__ = ["DataProcessor", "JaxDataProcessor", "TfDataProcessor"]
