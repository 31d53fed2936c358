"""Checkpoints: the values of models, optimizers, metrics and random streams as folders on disk.

Importing this package does not load Orbax; saving and restoring do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .layout import Manifest as Manifest, latest as latest
    from .orbax import restore as restore, save as save

_PLACES = {"Manifest": "layout", "latest": "layout", "restore": "orbax", "save": "orbax"}

__all__ = ["Manifest", "latest", "restore", "save"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
