"""Converts checkpoints of other libraries: PyTorch state dicts, safetensors, Linen's msgpack and Orbax.

Importing this package imports neither Flax nor torch, and converting needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .conversion import Conversion as Conversion, convert_checkpoint as convert_checkpoint
    from .layouts import Piece as Piece, register_layout as register_layout
    from .peft import load_peft as load_peft, save_peft as save_peft
    from .report import ConversionReport as ConversionReport
    from .torch_weights import to_torch as to_torch

_PLACES = {
    "Conversion": "conversion",
    "ConversionReport": "report",
    "Piece": "layouts",
    "convert_checkpoint": "conversion",
    "load_peft": "peft",
    "register_layout": "layouts",
    "save_peft": "peft",
    "to_torch": "torch_weights",
}

__all__ = [
    "Conversion",
    "ConversionReport",
    "Piece",
    "convert_checkpoint",
    "load_peft",
    "register_layout",
    "save_peft",
    "to_torch",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
