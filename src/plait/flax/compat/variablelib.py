"""The namespace ``plait.variablelib``: variables, their kinds, names and metadata."""

from ...core.intermediates.variable_names import (
    register_variable_name as register_variable_name,
    variable_name_from_type as variable_name_from_type,
    variable_type_from_name as variable_type_from_name,
)
from ...core.states.variable_state import VariableState as VariableState
from ...core.variables.variable_kinds import (
    BatchStat as BatchStat,
    Cache as Cache,
    Intermediate as Intermediate,
    LoRAParam as LoRAParam,
    OptArray as OptArray,
    OptState as OptState,
    OptVariable as OptVariable,
    Param as Param,
    Perturbation as Perturbation,
)
from ...core.variables.variable_metadata import VariableMetadata as VariableMetadata
from ...core.variables.variables import A as A, Variable as Variable, eager_sharding_hooks as eager_sharding_hooks
from ...partitioning.initializers import with_metadata as with_metadata, with_partitioning as with_partitioning
from .variable_defaults import (
    use_eager_sharding as use_eager_sharding,
    using_eager_sharding as using_eager_sharding,
    var_defaults as var_defaults,
)
