"""Models as files that run without plait: TensorFlow SavedModels, StableHLO bundles, ONNX and LiteRT files.

Importing this package loads none of TensorFlow, ONNX and safetensors; the function that needs one does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        config as config,
        constants as constants,
        data_processors as data_processors,
        dtensor_utils as dtensor_utils,
        obm_configs as obm_configs,
        typing as typing,
        utils as utils,
        validate as validate,
    )
    from .describe import describe_exports as describe_exports
    from .dtensor_utils import (
        dtensor_initialized as dtensor_initialized,
        get_current_dtensor_mesh as get_current_dtensor_mesh,
        get_current_mesh as get_current_mesh,
        get_pspec_from_jax_arrays as get_pspec_from_jax_arrays,
        initialize_dtensor as initialize_dtensor,
        maybe_enable_dtensor_export_on as maybe_enable_dtensor_export_on,
        shutdown_dtensor as shutdown_dtensor,
    )
    from .export_manager import ExportManager as ExportManager
    from .input_spec import InputSpec as InputSpec
    from .jax_module import JaxModule as JaxModule
    from .onnx import save_onnx as save_onnx
    from .program import Program as Program, program_of as program_of
    from .proof import prove as prove
    from .saved_model import save_saved_model as save_saved_model
    from .saving import load as load, save as save
    from .serving import ServingConfig as ServingConfig
    from .signatures import (
        TensorSpecWithDefault as TensorSpecWithDefault,
        remove_signature_defaults as remove_signature_defaults,
    )
    from .stablehlo import load_stablehlo as load_stablehlo, save_stablehlo as save_stablehlo
    from .validate import ExportReport as ExportReport, validate_export as validate_export

_PLACES = {
    "describe_exports": "describe",
    "dtensor_initialized": "dtensor_utils",
    "ExportManager": "export_manager",
    "ExportReport": "validate",
    "get_current_dtensor_mesh": "dtensor_utils",
    "get_current_mesh": "dtensor_utils",
    "get_pspec_from_jax_arrays": "dtensor_utils",
    "initialize_dtensor": "dtensor_utils",
    "InputSpec": "input_spec",
    "JaxModule": "jax_module",
    "load": "saving",
    "load_stablehlo": "stablehlo",
    "maybe_enable_dtensor_export_on": "dtensor_utils",
    "Program": "program",
    "program_of": "program",
    "prove": "proof",
    "remove_signature_defaults": "signatures",
    "save": "saving",
    "save_onnx": "onnx",
    "save_saved_model": "saved_model",
    "save_stablehlo": "stablehlo",
    "ServingConfig": "serving",
    "shutdown_dtensor": "dtensor_utils",
    "TensorSpecWithDefault": "signatures",
    "validate_export": "validate",
}

# Modules that are public under their own name.
_MODULES = frozenset(
    {"config", "constants", "data_processors", "dtensor_utils", "obm_configs", "typing", "utils", "validate"}
)

__all__ = [
    "config",
    "constants",
    "data_processors",
    "describe_exports",
    "dtensor_initialized",
    "dtensor_utils",
    "ExportManager",
    "ExportReport",
    "get_current_dtensor_mesh",
    "get_current_mesh",
    "get_pspec_from_jax_arrays",
    "initialize_dtensor",
    "InputSpec",
    "JaxModule",
    "load",
    "load_stablehlo",
    "maybe_enable_dtensor_export_on",
    "obm_configs",
    "Program",
    "program_of",
    "prove",
    "remove_signature_defaults",
    "save",
    "save_onnx",
    "save_saved_model",
    "save_stablehlo",
    "ServingConfig",
    "shutdown_dtensor",
    "TensorSpecWithDefault",
    "typing",
    "utils",
    "validate",
    "validate_export",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_MODULES})
