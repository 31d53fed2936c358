"""Modules with compact methods, under Flax's module name: ``plait.flax.bridge.module``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....util.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..wrappers.scope import Scope as Scope
    from .compact_module import Module as Module, compact as compact
    from .running import (
        AttrPriority as AttrPriority,
        ModuleStackEntry as ModuleStackEntry,
        current_context as current_context,
        current_module as current_module,
    )

_NAMES = {
    "..wrappers.scope": "Scope",
    "compact_module": "Module compact",
    "running": "AttrPriority ModuleStackEntry current_context current_module",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
