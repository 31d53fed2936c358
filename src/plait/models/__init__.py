"""Published models, made from the config and weights that their publishers put beside each other in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .adapters import load_adapter as load_adapter, save_adapter as save_adapter
    from .decoder import Decoder as Decoder
    from .encoder import Encoder as Encoder
    from .loading import load as load
    from .saving import save as save

_NAMES = {
    "adapters": "load_adapter save_adapter",
    "decoder": "Decoder",
    "encoder": "Encoder",
    "loading": "load",
    "saving": "save",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
