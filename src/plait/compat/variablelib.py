"""The namespace ``plait.variablelib``: variables, their kinds, names and metadata."""

from __future__ import annotations

from ..core.objects.settings import (
    use_eager_sharding as use_eager_sharding,
    using_eager_sharding as using_eager_sharding,
    var_defaults as var_defaults,
)
from ..core.objects.variable_kinds import (
    BatchStat as BatchStat,
    Cache as Cache,
    Intermediate as Intermediate,
    LoRAParam as LoRAParam,
    OptArray as OptArray,
    OptState as OptState,
    OptVariable as OptVariable,
    Param as Param,
    Perturbation as Perturbation,
    VariableState as VariableState,
)
from ..core.objects.variable_metadata import (
    VariableMetadata as VariableMetadata,
    with_metadata as with_metadata,
    with_partitioning as with_partitioning,
)
from ..core.objects.variables import A as A, Variable as Variable, eager_sharding_hooks as eager_sharding_hooks
from ..sowing.variable_names import (
    register_variable_name as register_variable_name,
    variable_name_from_type as variable_name_from_type,
    variable_type_from_name as variable_type_from_name,
)
