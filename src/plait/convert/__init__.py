"""Converts checkpoints of other libraries: PyTorch state dicts, safetensors, Linen's msgpack and Orbax.

Importing this package imports neither Flax nor torch, and converting needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .conversion import Conversion as Conversion, convert_checkpoint as convert_checkpoint
    from .layouts import Piece as Piece, register_layout as register_layout
    from .peft import load_peft as load_peft, save_peft as save_peft
    from .report import ConversionReport as ConversionReport
    from .torch_weights import to_torch as to_torch

_NAMES = {
    "conversion": "Conversion convert_checkpoint",
    "layouts": "Piece register_layout",
    "peft": "load_peft save_peft",
    "report": "ConversionReport",
    "torch_weights": "to_torch",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
