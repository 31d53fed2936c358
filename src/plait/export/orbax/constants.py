"""Names that several classes of the SavedModel interface share."""

from __future__ import annotations

import enum

DEFAULT_METHOD_KEY = "jax_module_default_method"

# Keys of ``jax2tf_kwargs``.
NATIVE_SERIALIZATION_PLATFORMS = "native_serialization_platforms"
POLYMORPHIC_CONSTRAINTS = "polymorphic_constraints"


class ExportModelType(enum.Enum):
    """The model kinds of ``JaxModule``. Only ``TF_SAVEDMODEL`` is supported."""

    TF_SAVEDMODEL = "TF_SAVEDMODEL"
    ORBAX_MODEL = "ORBAX_MODEL"
