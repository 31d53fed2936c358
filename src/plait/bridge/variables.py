"""Conversions between variables and Linen, under the module name of Flax: ``plait.bridge.variables``."""

from .collections import (
    linen_vars_to_nnx_attrs as linen_vars_to_nnx_attrs,
    nnx_attrs_to_linen_vars as nnx_attrs_to_linen_vars,
)
from .kinds import (
    VariableTypeCache as VariableTypeCache,
    register_variable_name_type_pair as register_variable_name_type_pair,
    sort_variable_types as sort_variable_types,
    variable_type as variable_type,
    variable_type_name as variable_type_name,
)
from .leaves import (
    get_col_name as get_col_name,
    is_vanilla_variable as is_vanilla_variable,
    to_linen_var as to_linen_var,
    to_nnx_var as to_nnx_var,
    with_partitioning as with_partitioning,
)
from .nnx_meta import NNXMeta as NNXMeta
