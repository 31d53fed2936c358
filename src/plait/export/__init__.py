"""Models as files that run without plait: TensorFlow SavedModels, StableHLO folders, ONNX files.

Importing this package loads none of TensorFlow, ONNX and safetensors; the function that needs one does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .describe import describe_exports as describe_exports
    from .input_spec import InputSpec as InputSpec
    from .onnx import save_onnx as save_onnx
    from .program import Program as Program, program_of as program_of
    from .proof import prove as prove
    from .saved_model import save_saved_model as save_saved_model
    from .saving import load as load, save as save
    from .stablehlo import load_stablehlo as load_stablehlo, save_stablehlo as save_stablehlo
    from .validate import ExportReport as ExportReport, validate_export as validate_export

_PLACES = {
    "ExportReport": "validate",
    "InputSpec": "input_spec",
    "Program": "program",
    "describe_exports": "describe",
    "program_of": "program",
    "prove": "proof",
    "load": "saving",
    "load_stablehlo": "stablehlo",
    "save": "saving",
    "save_onnx": "onnx",
    "save_saved_model": "saved_model",
    "save_stablehlo": "stablehlo",
    "validate_export": "validate",
}

__all__ = [
    "ExportReport",
    "InputSpec",
    "Program",
    "describe_exports",
    "load",
    "load_stablehlo",
    "program_of",
    "prove",
    "save",
    "save_onnx",
    "save_saved_model",
    "save_stablehlo",
    "validate_export",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
