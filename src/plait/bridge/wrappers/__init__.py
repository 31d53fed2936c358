"""The two wrappers and their functions, under Flax's module name: ``plait.bridge.wrappers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ground.lazy_names import lazy_names

if TYPE_CHECKING:
    from .as_linen import to_linen as to_linen, to_linen_class as to_linen_class
    from .init_apply import Functional as Functional, functional as functional
    from .lazy import lazy_init as lazy_init
    from .linen import current_linen_module as current_linen_module
    from .linen_wrapper import ToLinen as ToLinen
    from .rngs import linen_rngs_dict as linen_rngs_dict
    from .to_nnx import ToNNX as ToNNX

_PLACES = {
    "Functional": "init_apply",
    "ToLinen": "as_linen",
    "ToNNX": "to_nnx",
    "current_linen_module": "linen",
    "functional": "init_apply",
    "lazy_init": "lazy",
    "linen_rngs_dict": "rngs",
    "to_linen": "as_linen",
    "to_linen_class": "as_linen",
}

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
