"""The names of Orbax Export's ``constants``; ``orbax/`` defines them."""

from .orbax.constants import (
    DEFAULT_METHOD_KEY,
    NATIVE_SERIALIZATION_PLATFORMS,
    POLYMORPHIC_CONSTRAINTS,
    ExportModelType,
)

__all__ = ["DEFAULT_METHOD_KEY", "ExportModelType", "NATIVE_SERIALIZATION_PLATFORMS", "POLYMORPHIC_CONSTRAINTS"]
