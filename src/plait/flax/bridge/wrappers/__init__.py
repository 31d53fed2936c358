"""The two wrappers and their functions, under Flax's module name: ``plait.flax.bridge.wrappers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .as_linen import to_linen as to_linen, to_linen_class as to_linen_class
    from .init_apply import Functional as Functional, functional as functional
    from .lazy import lazy_init as lazy_init
    from .linen import current_linen_module as current_linen_module
    from .linen_wrapper import ToLinen as ToLinen
    from .rngs import linen_rngs_dict as linen_rngs_dict
    from .to_nnx import ToNNX as ToNNX

_NAMES = {
    "as_linen": "ToLinen to_linen to_linen_class",
    "init_apply": "Functional functional",
    "lazy": "lazy_init",
    "linen": "current_linen_module",
    "rngs": "linen_rngs_dict",
    "to_nnx": "ToNNX",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
