"""The bridge to Linen: plait modules and variables inside their code, and Linen modules inside plait.

``plait.convert`` converts checkpoints; its names are available here too.

Importing this package imports neither Flax nor torch; wrapping a Linen module, or becoming one, needs Flax.
"""

# Rule B1.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...util.lazy_names import lazy_names

if TYPE_CHECKING:
    from ...convert import (
        Conversion as Conversion,
        ConversionReport as ConversionReport,
        Piece as Piece,
        convert_checkpoint as convert_checkpoint,
        register_layout as register_layout,
        to_torch as to_torch,
    )
    from . import (
        interop as interop,
        module as module,
        partitioning as partitioning,
        variables as variables,
        wrappers as wrappers,
    )
    from .interop import linen_in_bridge_mdl as linen_in_bridge_mdl, nnx_in_bridge_mdl as nnx_in_bridge_mdl
    from .module.compact_module import Module as Module, compact as compact
    from .module.running import (
        AttrPriority as AttrPriority,
        current_context as current_context,
        current_module as current_module,
    )
    from .variables.boxed_variables import (
        get_col_name as get_col_name,
        is_vanilla_variable as is_vanilla_variable,
        to_linen_var as to_linen_var,
        to_nnx_var as to_nnx_var,
        with_partitioning as with_partitioning,
    )
    from .variables.collection_types import (
        VariableTypeCache as VariableTypeCache,
        register_variable_name_type_pair as register_variable_name_type_pair,
        sort_variable_types as sort_variable_types,
        variable_type as variable_type,
        variable_type_name as variable_type_name,
    )
    from .variables.collections import (
        from_collections as from_collections,
        linen_vars_to_nnx_attrs as linen_vars_to_nnx_attrs,
        nnx_attrs_to_linen_vars as nnx_attrs_to_linen_vars,
        to_collections as to_collections,
    )
    from .variables.nnx_meta import NNXMeta as NNXMeta
    from .wrappers.as_linen import to_linen as to_linen, to_linen_class as to_linen_class
    from .wrappers.init_apply import Functional as Functional, functional as functional
    from .wrappers.lazy import lazy_init as lazy_init
    from .wrappers.linen import current_linen_module as current_linen_module
    from .wrappers.linen_wrapper import ToLinen as ToLinen
    from .wrappers.rngs import linen_rngs_dict as linen_rngs_dict
    from .wrappers.scope import Scope as Scope
    from .wrappers.to_nnx import ToNNX as ToNNX

    initializers: Any  # the initializers of plait.nn; the bridge itself does not use them

_NAMES = {
    ".": "interop module partitioning variables wrappers",
    "...convert": "Conversion ConversionReport Piece convert_checkpoint register_layout to_torch",
    "...nn.": "initializers",
    "interop": "linen_in_bridge_mdl nnx_in_bridge_mdl",
    "module.compact_module": "Module compact",
    "module.running": "AttrPriority current_context current_module",
    "variables.boxed_variables": "get_col_name is_vanilla_variable to_linen_var to_nnx_var with_partitioning",
    "variables.collection_types": (
        "VariableTypeCache register_variable_name_type_pair sort_variable_types variable_type variable_type_name"
    ),
    "variables.collections": "from_collections linen_vars_to_nnx_attrs nnx_attrs_to_linen_vars to_collections",
    "variables.nnx_meta": "NNXMeta",
    "wrappers.as_linen": "ToLinen to_linen to_linen_class",
    "wrappers.init_apply": "Functional functional",
    "wrappers.lazy": "lazy_init",
    "wrappers.linen": "current_linen_module",
    "wrappers.rngs": "linen_rngs_dict",
    "wrappers.scope": "Scope",
    "wrappers.to_nnx": "ToNNX",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
    __all__ = __dir__()
