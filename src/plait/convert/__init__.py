"""Converts checkpoints of other libraries: PyTorch state dicts, safetensors, Linen's msgpack and Orbax.

Importing this package imports neither Flax nor torch, and converting needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .conversion import Conversion as Conversion, convert_checkpoint as convert_checkpoint
    from .layouts import Piece as Piece, register_layout as register_layout
    from .report import ConversionReport as ConversionReport
    from .torch_weights import to_torch as to_torch

_PLACES = {
    "Conversion": "conversion",
    "ConversionReport": "report",
    "Piece": "layouts",
    "convert_checkpoint": "conversion",
    "register_layout": "layouts",
    "to_torch": "torch_weights",
}

__all__ = ["Conversion", "ConversionReport", "Piece", "convert_checkpoint", "register_layout", "to_torch"]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
