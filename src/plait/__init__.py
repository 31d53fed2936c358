"""plait: neural networks for JAX as graphs of ordinary Python objects.

``import plait as nnx`` stands in for ``from flax import nnx``. The names below are the public ones; ``_public.py``
lists them, with those that load on first use.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from . import _public, errors as errors, nn as nn
from .core import (
    filters as filterlib,
    graph as graph,
    graph as graphlib,
    proxy_caller as proxy_caller,
    rngs as rnglib,
    state as statelib,
    variables as variablelib,
)
from .core.attributes import (
    Data as Data,
    Static as Static,
    data as data,
    has_data as has_data,
    is_data as is_data,
    register_data_type as register_data_type,
    static as static,
)
from .core.capture import capture as capture
from .core.config import from_config as from_config, to_config as to_config
from .core.containers import Dict as Dict, List as List
from .core.filters import (
    All as All,
    Any_ as Any,
    Everything as Everything,
    Not as Not,
    Nothing as Nothing,
    OfType as OfType,
    PathContains as PathContains,
    WithTag as WithTag,
    to_predicate as to_predicate,
)
from .core.functional import (
    GraphState as GraphState,
    clone as clone,
    flatten as flatten,
    graphdef as graphdef,
    merge as merge,
    pop as pop,
    split as split,
    state as state,
    unflatten as unflatten,
    unpack as unpack,
    update as update,
    variables as variables,
)
from .core.graphdef import GraphDef as GraphDef
from .core.modes import set_graph_mode as set_graph_mode, set_graph_updates as set_graph_updates
from .core.module import (
    M as M,
    Module as Module,
    Object as Object,
    Pytree as Pytree,
    check_pytree as check_pytree,
    dataclass as dataclass,
)
from .core.proxy_caller import call as call
from .core.rngs import (
    RngCount as RngCount,
    RngKey as RngKey,
    Rngs as Rngs,
    RngState as RngState,
    RngStream as RngStream,
)
from .core.settings import (
    use_eager_sharding as use_eager_sharding,
    using_eager_sharding as using_eager_sharding,
    var_defaults as var_defaults,
)
from .core.state import (
    FlatState as FlatState,
    State as State,
    as_pure as as_pure,
    as_pure as pure,
    filter_state as filter_state,
    from_flat_state as from_flat_state,
    map_state as map_state,
    merge_state as merge_state,
    replace_by_pure_dict as replace_by_pure_dict,
    restore_int_paths as restore_int_paths,
    split_state as split_state,
    to_flat_state as to_flat_state,
    to_pure_dict as to_pure_dict,
)
from .core.traversal import (
    find_duplicates as find_duplicates,
    iter_children as iter_children,
    iter_graph as iter_graph,
    iter_module_children as iter_module_children,
    iter_modules as iter_modules,
    set_metadata as set_metadata,
)
from .core.update_context import (
    MergeContext as MergeContext,
    SplitContext as SplitContext,
    UpdateContext as UpdateContext,
    current_update_context as current_update_context,
    merge_context as merge_context,
    split_context as split_context,
    update_context as update_context,
)
from .core.variable_metadata import (
    VariableMetadata as VariableMetadata,
    with_metadata as with_metadata,
    with_partitioning as with_partitioning,
)
from .core.variable_names import (
    register_variable_name as register_variable_name,
    variable_name_from_type as variable_name_from_type,
    variable_type_from_name as variable_type_from_name,
)
from .core.variables import (
    A as A,
    BatchStat as BatchStat,
    Cache as Cache,
    Intermediate as Intermediate,
    LoRAParam as LoRAParam,
    Param as Param,
    Perturbation as Perturbation,
    Variable as Variable,
    VariableState as VariableState,
)
from .core.views import (
    map as map,
    recursive_map as recursive_map,
    view as view,
    view_info as view_info,
    with_attributes as with_attributes,
    with_vars as with_vars,
)
from .nn import initializers as initializers
from .nn.activations import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    glu as glu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_swish as hard_swish,
    hard_tanh as hard_tanh,
    identity as identity,
    leaky_relu as leaky_relu,
    log_sigmoid as log_sigmoid,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    one_hot as one_hot,
    relu as relu,
    relu6 as relu6,
    selu as selu,
    sigmoid as sigmoid,
    silu as silu,
    soft_sign as soft_sign,
    softmax as softmax,
    softplus as softplus,
    standardize as standardize,
    swish as swish,
    tanh as tanh,
)
from .nn.conv import Conv as Conv, ConvTranspose as ConvTranspose
from .nn.dropout import Dropout as Dropout
from .nn.embedding import Embed as Embed
from .nn.linear import Einsum as Einsum, Linear as Linear, LinearGeneral as LinearGeneral
from .nn.norm import (
    BatchNorm as BatchNorm,
    GroupNorm as GroupNorm,
    InstanceNorm as InstanceNorm,
    LayerNorm as LayerNorm,
    RMSNorm as RMSNorm,
)
from .nn.pooling import avg_pool as avg_pool, max_pool as max_pool, min_pool as min_pool, pool as pool
from .nn.sequential import Sequential as Sequential
from .transforms.autodiff import DiffState as DiffState, grad as grad, value_and_grad as value_and_grad
from .transforms.jit import jit as jit

if TYPE_CHECKING:
    from . import checkpoint as checkpoint, export as export, training as training
    from .inspect.diff import GraphDiff as GraphDiff, diff as diff
    from .inspect.retrace import explain_retraces as explain_retraces
    from .training import metrics as metrics, optimizer as optimizer
    from .training.ema import EMA as EMA
    from .training.metrics import Metric as Metric, MultiMetric as MultiMetric
    from .training.optimizer import (
        ModelAndOptimizer as ModelAndOptimizer,
        OptArray as OptArray,
        Optimizer as Optimizer,
        OptState as OptState,
        OptVariable as OptVariable,
    )

__version__ = "0.1.0"

# ``from plait.graph import split`` and ``import plait.graph`` work for public modules that live elsewhere.
for _name, _module in _public.MODULES.items():
    if _name not in _public.LAZY:
        sys.modules.setdefault(f"{__name__}.{_name}", importlib.import_module(f".{_module}", __name__))


def __getattr__(name: str) -> object:
    """Load a name whose module is imported on first use."""
    if name not in _public.LAZY:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    module = importlib.import_module(f".{_public.LAZY[name]}", __name__)
    value = module if name in _public.LAZY_MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_public.PUBLIC)


if os.environ.get("PLAIT_EXPLAIN_RETRACES", "0") not in ("", "0"):
    from .inspect.retrace import explain_retraces as _explain_retraces

    _explain_retraces().__enter__()
