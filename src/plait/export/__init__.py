"""Models as files that run without plait: TensorFlow SavedModels, StableHLO bundles, ONNX and LiteRT files.

Importing this package does not import TensorFlow, ONNX or safetensors; the functions that need them do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from . import (
        dtensor_utils as dtensor_utils,
        export_manager as export_manager,
        jax_module as jax_module,
        utils as utils,
        validate as validate,
    )
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
    from .formats.onnx import save_onnx as save_onnx
    from .formats.saved_model import save_saved_model as save_saved_model
    from .formats.stablehlo import load_stablehlo as load_stablehlo, save_stablehlo as save_stablehlo
    from .jax_module import JaxModule as JaxModule
    from .program.input_spec import InputSpec as InputSpec
    from .program.program import Program as Program, program_of as program_of
    from .proof.describe import describe_exports as describe_exports
    from .proof.prove import prove as prove
    from .proof.report import ExportReport as ExportReport, validate_export as validate_export
    from .saving import load as load, save as save
    from .serving_config import ServingConfig as ServingConfig
    from .utils import (
        TensorSpecWithDefault as TensorSpecWithDefault,
        remove_signature_defaults as remove_signature_defaults,
    )

# The names of each file.
_NAMES = {
    ".": "dtensor_utils export_manager jax_module utils validate",
    "dtensor_utils": "dtensor_initialized get_current_dtensor_mesh get_current_mesh get_pspec_from_jax_arrays"
    " initialize_dtensor maybe_enable_dtensor_export_on shutdown_dtensor",
    "export_manager": "ExportManager",
    "formats.onnx": "save_onnx",
    "formats.saved_model": "save_saved_model",
    "formats.stablehlo": "load_stablehlo save_stablehlo",
    "jax_module": "JaxModule",
    "program.input_spec": "InputSpec",
    "program.program": "Program program_of",
    "proof.describe": "describe_exports",
    "proof.prove": "prove",
    "proof.report": "ExportReport validate_export",
    "saving": "load save",
    "serving_config": "ServingConfig",
    "utils": "TensorSpecWithDefault remove_signature_defaults",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
