"""The options of Orbax models, which plait does not write: using a name raises an error."""

from __future__ import annotations

from typing import Any

_NAMES = (
    "BatchComponent",
    "BatchOptions",
    "BatchPaddingPolicy",
    "Jax2ObmOptions",
    "ObmExportOptions",
    "SchedulerConfig",
)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        raise NotImplementedError(
            f"obm_configs.{name} is an option of export_version=ORBAX_MODEL; plait writes SavedModels (TF_SAVEDMODEL). "
            "Batching of a SavedModel is set where it is served: --batching_parameters_file of TensorFlow Serving"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
