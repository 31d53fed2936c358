"""The names of Orbax Export's ``export_manager``; ``orbax/`` defines them."""

from .orbax.export_manager import ExportManager

__all__ = ["ExportManager"]
