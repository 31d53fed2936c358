"""Conversions between variables and Linen, under Flax's module name: ``plait.bridge.variables``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ground.lazy_names import lazy_names

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

_PLACES = {
    "NNXMeta": "nnx_meta",
    "VariableTypeCache": "collection_types",
    "get_col_name": "boxed_variables",
    "is_vanilla_variable": "boxed_variables",
    "linen_vars_to_nnx_attrs": "collections",
    "nnx_attrs_to_linen_vars": "collections",
    "register_variable_name_type_pair": "collection_types",
    "sort_variable_types": "collection_types",
    "to_linen_var": "boxed_variables",
    "to_nnx_var": "boxed_variables",
    "variable_type": "collection_types",
    "variable_type_name": "collection_types",
    "with_partitioning": "boxed_variables",
}

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
