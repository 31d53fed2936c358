"""Conversions between variables and Linen, under Flax's module name: ``plait.flax.bridge.variables``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .boxed_variables import (
        get_col_name as get_col_name,
        is_vanilla_variable as is_vanilla_variable,
        to_linen_var as to_linen_var,
        to_nnx_var as to_nnx_var,
        with_partitioning as with_partitioning,
    )
    from .collection_types import (
        VariableTypeCache as VariableTypeCache,
        register_variable_name_type_pair as register_variable_name_type_pair,
        sort_variable_types as sort_variable_types,
        variable_type as variable_type,
        variable_type_name as variable_type_name,
    )
    from .collections import (
        linen_vars_to_nnx_attrs as linen_vars_to_nnx_attrs,
        nnx_attrs_to_linen_vars as nnx_attrs_to_linen_vars,
    )
    from .nnx_meta import NNXMeta as NNXMeta

_NAMES = {
    "boxed_variables": "get_col_name is_vanilla_variable to_linen_var to_nnx_var with_partitioning",
    "collection_types": (
        "VariableTypeCache register_variable_name_type_pair sort_variable_types variable_type variable_type_name"
    ),
    "collections": "linen_vars_to_nnx_attrs nnx_attrs_to_linen_vars",
    "nnx_meta": "NNXMeta",
}

if not TYPE_CHECKING:  # to a type checker any other name is an error
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
