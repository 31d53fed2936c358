"""Checkpoints: save the values of models, optimizers, metrics and random streams to folders, and restore them.

Importing this package does not import Orbax or safetensors; saving and restoring do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .checkpoints import Checkpoints as Checkpoints
    from .keep import Keep as Keep
    from .layout import Manifest as Manifest, Saved as Saved, latest as latest
    from .orbax import restore as restore, save as save
    from .plain import load_state as load_state, read_manifest as read_manifest
    from .safetensors import load_safetensors as load_safetensors, save_safetensors as save_safetensors
    from .stored import StoredArray as StoredArray

_NAMES = {
    "checkpoints": "Checkpoints",
    "keep": "Keep",
    "layout": "Manifest Saved latest",
    "orbax": "restore save",
    "plain": "load_state read_manifest",
    "safetensors": "load_safetensors save_safetensors",
    "stored": "StoredArray",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
