"""The bridge to other libraries: checkpoints of Linen and PyTorch converted for good.

Importing this package loads neither Flax nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conversion_report import ConversionReport as ConversionReport
    from .convert import Conversion as Conversion, convert_checkpoint as convert_checkpoint
    from .layouts import Piece as Piece, register_layout as register_layout
    from .torch_weights import to_torch as to_torch

_PLACES = {
    "Conversion": "convert",
    "ConversionReport": "conversion_report",
    "Piece": "layouts",
    "convert_checkpoint": "convert",
    "register_layout": "layouts",
    "to_torch": "torch_weights",
}

__all__ = ["Conversion", "ConversionReport", "Piece", "convert_checkpoint", "register_layout", "to_torch"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
