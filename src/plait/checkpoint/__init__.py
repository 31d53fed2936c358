"""Checkpoints: save the values of models, optimizers, metrics and random streams to folders, and restore them.

Importing this package does not import Orbax or safetensors; saving and restoring do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .checkpoints import Checkpoints as Checkpoints
    from .keep import Keep as Keep
    from .layout import Manifest as Manifest, Saved as Saved, latest as latest
    from .orbax import restore as restore, save as save
    from .plain import load_state as load_state, read_manifest as read_manifest
    from .safetensors import load_safetensors as load_safetensors, save_safetensors as save_safetensors
    from .stored import StoredArray as StoredArray

_PLACES = {
    "Checkpoints": "checkpoints",
    "Keep": "keep",
    "Manifest": "layout",
    "Saved": "layout",
    "StoredArray": "stored",
    "latest": "layout",
    "load_safetensors": "safetensors",
    "load_state": "plain",
    "read_manifest": "plain",
    "restore": "orbax",
    "save": "orbax",
    "save_safetensors": "safetensors",
}

__all__ = [
    "Checkpoints",
    "Keep",
    "Manifest",
    "Saved",
    "StoredArray",
    "latest",
    "load_safetensors",
    "load_state",
    "read_manifest",
    "restore",
    "save",
    "save_safetensors",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
