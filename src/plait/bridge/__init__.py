"""The bridge to Linen: modules and variables of plait inside Linen code, and the other way round.

What converts checkpoints for good is ``plait.convert``; its names are found here too.

Importing this package imports neither Flax nor torch; what wraps a Linen module, or becomes one, needs Flax. (rule B1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..convert import (
        Conversion as Conversion,
        ConversionReport as ConversionReport,
        Piece as Piece,
        convert_checkpoint as convert_checkpoint,
        register_layout as register_layout,
        to_torch as to_torch,
    )
    from . import partitioning as partitioning, variables as variables, wrappers as wrappers
    from .collections import (
        from_collections as from_collections,
        linen_vars_to_nnx_attrs as linen_vars_to_nnx_attrs,
        nnx_attrs_to_linen_vars as nnx_attrs_to_linen_vars,
        to_collections as to_collections,
    )
    from .init_apply import Functional as Functional, functional as functional
    from .interop import linen_in_bridge_mdl as linen_in_bridge_mdl, nnx_in_bridge_mdl as nnx_in_bridge_mdl
    from .kinds import (
        VariableTypeCache as VariableTypeCache,
        register_variable_name_type_pair as register_variable_name_type_pair,
        sort_variable_types as sort_variable_types,
        variable_type as variable_type,
        variable_type_name as variable_type_name,
    )
    from .lazy import lazy_init as lazy_init
    from .leaves import (
        get_col_name as get_col_name,
        is_vanilla_variable as is_vanilla_variable,
        to_linen_var as to_linen_var,
        to_nnx_var as to_nnx_var,
        with_partitioning as with_partitioning,
    )
    from .linen import current_linen_module as current_linen_module
    from .linen_wrapper import ToLinen as ToLinen
    from .module import Module as Module, compact as compact
    from .nnx_meta import NNXMeta as NNXMeta
    from .rngs import linen_rngs_dict as linen_rngs_dict
    from .scope import (
        AttrPriority as AttrPriority,
        Scope as Scope,
        current_context as current_context,
        current_module as current_module,
    )
    from .to_nnx import ToNNX as ToNNX
    from .wrappers import to_linen as to_linen, to_linen_class as to_linen_class

    initializers: Any  # those of plait.nn, of which the bridge itself uses nothing

_PLACES = {
    "AttrPriority": "scope",
    "Functional": "init_apply",
    "Module": "module",
    "NNXMeta": "nnx_meta",
    "Scope": "scope",
    "ToLinen": "wrappers",
    "ToNNX": "to_nnx",
    "VariableTypeCache": "kinds",
    "compact": "module",
    "current_context": "scope",
    "current_linen_module": "linen",
    "current_module": "scope",
    "from_collections": "collections",
    "functional": "init_apply",
    "get_col_name": "leaves",
    "is_vanilla_variable": "leaves",
    "lazy_init": "lazy",
    "linen_in_bridge_mdl": "interop",
    "linen_rngs_dict": "rngs",
    "linen_vars_to_nnx_attrs": "collections",
    "nnx_attrs_to_linen_vars": "collections",
    "nnx_in_bridge_mdl": "interop",
    "register_variable_name_type_pair": "kinds",
    "sort_variable_types": "kinds",
    "to_collections": "collections",
    "to_linen": "wrappers",
    "to_linen_class": "wrappers",
    "to_linen_var": "leaves",
    "to_nnx_var": "leaves",
    "variable_type": "kinds",
    "variable_type_name": "kinds",
    "with_partitioning": "leaves",
}
# What has moved to plait.convert, and is still found here.
_CONVERSION = ("Conversion", "ConversionReport", "Piece", "convert_checkpoint", "register_layout", "to_torch")
_MODULES = {
    "partitioning": ".partitioning",
    "variables": ".variables",
    "wrappers": ".wrappers",
    "initializers": "..nn.initializers",
}

__all__ = [
    "AttrPriority",
    "Conversion",
    "ConversionReport",
    "Functional",
    "Module",
    "NNXMeta",
    "Piece",
    "Scope",
    "ToLinen",
    "ToNNX",
    "VariableTypeCache",
    "compact",
    "convert_checkpoint",
    "current_context",
    "current_linen_module",
    "current_module",
    "from_collections",
    "functional",
    "get_col_name",
    "initializers",
    "is_vanilla_variable",
    "lazy_init",
    "linen_in_bridge_mdl",
    "linen_rngs_dict",
    "linen_vars_to_nnx_attrs",
    "nnx_attrs_to_linen_vars",
    "nnx_in_bridge_mdl",
    "partitioning",
    "register_layout",
    "register_variable_name_type_pair",
    "sort_variable_types",
    "to_collections",
    "to_linen",
    "to_linen_class",
    "to_linen_var",
    "to_nnx_var",
    "to_torch",
    "variable_type",
    "variable_type_name",
    "variables",
    "with_partitioning",
    "wrappers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name], __name__)
    if name in _CONVERSION:
        return getattr(importlib.import_module("..convert", __name__), name)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
