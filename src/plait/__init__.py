"""plait: neural networks for JAX as graphs of ordinary Python objects.

``import plait as nnx`` replaces ``from flax import nnx``. ``_public.py`` lists the public names. The heart
loads with the package: modules, variables, graphs and states, and what their metadata does to a new variable. All
other names load on first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _public
from .util import public_modules as _public_modules
from .inspect import hooks as _inspect_hooks  # first, since what is loaded below takes its own hooks
from .flax.compat import old_methods as _old_methods
from .core.nodes.attributes import Data as Data
from .core.nodes.attributes import Static as Static
from .core.nodes.attributes import data as data
from .core.nodes.attributes import has_data as has_data
from .core.nodes.attributes import is_data as is_data
from .core.nodes.attributes import register_data_type as register_data_type
from .core.nodes.attributes import static as static
from .core.graph.axes import PARTITION_NAME as PARTITION_NAME
from .core.nodes.containers import Dict as Dict
from .core.nodes.containers import List as List
from .core.graph.diff import GraphDiff as GraphDiff
from .core.graph.diff import diff as diff
from .core.variables.filters import All as All
from .core.variables.filters import Any_ as Any
from .core.variables.filters import Everything as Everything
from .core.variables.filters import Not as Not
from .core.variables.filters import Nothing as Nothing
from .core.variables.filters import OfType as OfType
from .core.variables.filters import PathContains as PathContains
from .core.variables.filters import WithTag as WithTag
from .core.variables.filters import to_predicate as to_predicate
from .core.states.graph_state import GraphState as GraphState
from .core.states.live import merge as merge
from .core.states.flat_graphs import unflatten as unflatten
from .core.functional.update import update as update
from .core.graph.graphdef import GraphDef as GraphDef
from .core.nodes.module import M as M
from .core.nodes.module import Module as Module
from .core.nodes.module import Object as Object
from .core.nodes.pytree import Pytree as Pytree
from .core.nodes.module import dataclass as dataclass
from .core.states.live import call as call
from .core.rngs import RngCount as RngCount
from .core.rngs import RngKey as RngKey
from .core.rngs import RngState as RngState
from .core.rngs import RngStream as RngStream
from .core.rngs import Rngs as Rngs
from .flax.compat.variable_defaults import use_eager_sharding as use_eager_sharding
from .flax.compat.variable_defaults import using_eager_sharding as using_eager_sharding
from .flax.compat.variable_defaults import var_defaults as var_defaults
from .core.states.state import FlatState as FlatState
from .core.states.state import State as State
from .core.states.pure_dicts import as_pure as as_pure
from .core.states.state_functions import filter_state as filter_state
from .core.states.state import from_flat_state as from_flat_state
from .core.states.state_functions import map_state as map_state
from .core.states.state_functions import merge_state as merge_state
from .core.states.pure_dicts import as_pure as pure
from .core.states.pure_dicts import replace_by_pure_dict as replace_by_pure_dict
from .core.states.pure_dicts import restore_int_paths as restore_int_paths
from .core.states.state_functions import split_state as split_state
from .core.states.state import to_flat_state as to_flat_state
from .core.states.pure_dicts import to_pure_dict as to_pure_dict
from .flax.compat.update_context import MergeContext as MergeContext
from .flax.compat.update_context import SplitContext as SplitContext
from .flax.compat.update_context import UpdateContext as UpdateContext
from .flax.compat.update_context import current_update_context as current_update_context
from .flax.compat.update_context import merge_context as merge_context
from .flax.compat.update_context import split_context as split_context
from .flax.compat.update_context import update_context as update_context
from .core.variables.variable_metadata import VariableMetadata as VariableMetadata
from .partitioning.initializers import with_metadata as with_metadata
from .partitioning.initializers import with_partitioning as with_partitioning
from .core.intermediates.variable_names import register_variable_name as register_variable_name
from .core.intermediates.variable_names import variable_name_from_type as variable_name_from_type
from .core.intermediates.variable_names import variable_type_from_name as variable_type_from_name
from .core.variables.variables import A as A
from .core.variables.variable_kinds import BatchStat as BatchStat
from .core.variables.variable_kinds import Cache as Cache
from .core.variables.variable_kinds import Intermediate as Intermediate
from .core.variables.variable_kinds import LoRAParam as LoRAParam
from .core.variables.variable_kinds import Param as Param
from .core.variables.variable_kinds import Perturbation as Perturbation
from .core.variables.variables import Variable as Variable
from .core.states.variable_state import VariableState as VariableState
from . import errors as errors
from .typing import Initializer as Initializer
from .partitioning import shardings as _shardings

if TYPE_CHECKING:
    from .core.variables import filters as filterlib
    from .inspect.observe.capture import capture as capture
    from .edit.pop import pop as pop
    from .core.graph.traversal import check_pytree as check_pytree
    from .core.graph.traversal import find_duplicates as find_duplicates
    from .core.graph.traversal import set_metadata as set_metadata
    from .core.functional.merge import clone as clone
    from .core.states.live import flatten as flatten
    from .core.functional.split import graphdef as graphdef
    from .core.states.live import split as split
    from .core.states.live import state as state
    from .core.states.live import unpack as unpack
    from .core.graph.traversal import variables as variables
    from .flax.compat import graph as graph
    from .core.graph.modes import set_graph_mode as set_graph_mode
    from .core.graph.modes import set_graph_updates as set_graph_updates
    from .inspect.observe.nonfinite import debug_nans as debug_nans
    from .inspect.observe.nonfinite import find_nonfinite as find_nonfinite
    from .core.states.graph_state import PureState as PureState
    from .edit.selection import Selection as Selection
    from .edit.selection import select as select
    from .edit.selection import trainable as trainable
    from .core.graph.traversal import iter_children as iter_children
    from .core.graph.traversal import iter_graph as iter_graph
    from .core.graph.traversal import iter_module_children as iter_module_children
    from .core.graph.traversal import iter_modules as iter_modules
    from .edit.views import map as map
    from .edit.views import recursive_map as recursive_map
    from .edit.views import view as view
    from .edit.views import view_info as view_info
    from .edit.views import with_attributes as with_attributes
    from .edit.views import with_vars as vars_as
    from .edit.views import with_vars as with_vars
    from . import nn as nn
    from .nn.activations import celu as celu
    from .nn.activations import elu as elu
    from .nn.activations import gelu as gelu
    from .nn.activations import glu as glu
    from .nn.activations import hard_sigmoid as hard_sigmoid
    from .nn.activations import hard_silu as hard_silu
    from .nn.activations import hard_swish as hard_swish
    from .nn.activations import hard_tanh as hard_tanh
    from .nn.activations import identity as identity
    from .nn.activations import leaky_relu as leaky_relu
    from .nn.activations import log_sigmoid as log_sigmoid
    from .nn.activations import log_softmax as log_softmax
    from .nn.activations import logsumexp as logsumexp
    from .nn.activations import mish as mish
    from .nn.activations import one_hot as one_hot
    from .nn.activations import relu as relu
    from .nn.activations import relu6 as relu6
    from .nn.activations import selu as selu
    from .nn.activations import sigmoid as sigmoid
    from .nn.activations import silu as silu
    from .nn.activations import soft_sign as soft_sign
    from .nn.activations import softmax as softmax
    from .nn.activations import softplus as softplus
    from .nn.activations import sparse_plus as sparse_plus
    from .nn.activations import sparse_sigmoid as sparse_sigmoid
    from .nn.activations import squareplus as squareplus
    from .nn.activations import standardize as standardize
    from .nn.activations import swish as swish
    from .nn.activations import tanh as tanh
    from .edit.adapters import add_lora as add_lora
    from .edit.adapters import merge_lora as merge_lora
    from .edit.adapters import unmerge_lora as unmerge_lora
    from .edit.adapters import use_lora as use_lora
    from .nn.attention import MultiHeadAttention as MultiHeadAttention
    from .nn.cells import GRUCell as GRUCell
    from .nn.cells import LSTMCell as LSTMCell
    from .nn.cells import OptimizedLSTMCell as OptimizedLSTMCell
    from .nn.cells import RNNCellBase as RNNCellBase
    from .nn.cells import SimpleCell as SimpleCell
    from .nn.conv import Conv as Conv
    from .nn.conv import ConvTranspose as ConvTranspose
    from .nn.dot_product import dot_product_attention as dot_product_attention
    from .nn.dropout import Dropout as Dropout
    from .nn.embedding import Embed as Embed
    from .nn import initializers as initializers
    from .nn.linear import Einsum as Einsum
    from .nn.linear import Linear as Linear
    from .nn.linear import LinearGeneral as LinearGeneral
    from .nn.lora import LoRA as LoRA
    from .nn.lora import LoRALinear as LoRALinear
    from .nn.masks import combine_masks as combine_masks
    from .nn.masks import make_attention_mask as make_attention_mask
    from .nn.masks import make_causal_mask as make_causal_mask
    from .nn.batch_norm import BatchNorm as BatchNorm
    from .nn.group_norm import GroupNorm as GroupNorm
    from .nn.norm import InstanceNorm as InstanceNorm
    from .nn.norm import LayerNorm as LayerNorm
    from .nn.norm import RMSNorm as RMSNorm
    from .nn.pooling import avg_pool as avg_pool
    from .nn.pooling import max_pool as max_pool
    from .nn.pooling import min_pool as min_pool
    from .nn.pooling import pool as pool
    from .nn.prelu import PReLU as PReLU
    from .nn.recurrent import Bidirectional as Bidirectional
    from .nn.recurrent import RNN as RNN
    from .nn.reparametrisation import SpectralNorm as SpectralNorm
    from .nn.reparametrisation import WeightNorm as WeightNorm
    from .nn.rotary import (
        RoPE as RoPE,
        apply_rotary_embedding as apply_rotary_embedding,
        dot_product_attention_with_rope as dot_product_attention_with_rope,
    )
    from .nn.sequential import Sequential as Sequential
    from .nn.stacks.per_layer import PerLayer as PerLayer
    from .nn.stacks.stack import Stack as Stack
    from .edit.stack_conversion import as_list as as_list
    from .edit.stack_conversion import as_stack as as_stack
    from . import partitioning as partitioning
    from .partitioning.activations import with_sharding_constraint as with_sharding_constraint
    from .partitioning.axis_rules import logical_axis_rules as logical_axis_rules
    from .partitioning import boxes as meta
    from .partitioning.shardings import abstract_with_sharding as abstract_with_sharding
    from .partitioning.shardings import as_abstract as as_abstract
    from .partitioning.shardings import get_abstract_model as get_abstract_model
    from .partitioning.specs import get_named_sharding as get_named_sharding
    from .partitioning.specs import get_partition_spec as get_partition_spec
    from .flax.compat import spmd as spmd
    from .transforms.autodiff import grad as grad
    from .transforms.autodiff import value_and_grad as value_and_grad
    from .transforms.axis_names import transform_metadata as transform_metadata
    from .transforms.batching import pmap as pmap
    from .transforms.batching import vmap as vmap
    from .transforms.branches import cond as cond
    from .transforms.branches import switch as switch
    from .flax.compat.partials import cached_partial as cached_partial
    from .flax.compat.partials import jit_partial as jit_partial
    from .flax import compat as compat
    from .transforms.custom_rules import custom_jvp as custom_jvp
    from .transforms.custom_rules import custom_vjp as custom_vjp
    from .transforms.jit.function import jit as jit
    from .transforms.lax_map import lax_map as lax_map
    from .transforms.loops import fori_loop as fori_loop
    from .transforms.loops import scan as scan
    from .transforms.loops import while_loop as while_loop
    from .inspect.observe.output_gradients import capture_gradients as capture_gradients
    from .transforms.call.prefixes import Carry as Carry
    from .transforms.call.prefixes import StateAxes as StateAxes
    from .transforms.call.prefixes import StateSharding as StateSharding
    from .transforms.call.prefixes import prefix as prefix
    from .transforms.remat import remat as remat
    from .transforms.streams import backup_keys as backup_keys
    from .transforms.streams import fork_rngs as fork_rngs
    from .edit.reseeding import reseed as reseed
    from .transforms.streams import restore_rngs as restore_rngs
    from .transforms.streams import split_rngs as split_rngs
    from .transforms.stream_rules import with_rngs as with_rngs
    from .transforms.selections import DiffState as DiffState
    from .transforms.jit.shapes import checkify as checkify
    from .transforms.jit.shapes import eval_shape as eval_shape
    from .transforms.jit.shapes import make_jaxpr as make_jaxpr
    from .transforms.sharded import shard_map as shard_map
    from .transforms.jacobians import hessian as hessian
    from .transforms.jacobians import hvp as hvp
    from .transforms.jacobians import jacfwd as jacfwd
    from .transforms.jacobians import jacrev as jacrev
    from .transforms.tangents import jvp as jvp
    from .transforms.tangents import linearize as linearize
    from .transforms.tangents import vjp as vjp
    from .flax.compat.tree_states import NodeStates as NodeStates
    from .flax.compat.tree_states import from_tree as from_tree
    from .flax.compat.tree_states import to_tree as to_tree
    from .flax import bridge as bridge
    from . import checkpoint as checkpoint
    from .inspect import compare as comparison
    from . import convert as convert
    from . import export as export
    from .inspect.explore.page import explore as explore
    from . import generation as generation
    from .generation.continuation import generate as generate
    from . import inspect as inspect
    from . import models as models
    from .inspect.cost import cost as cost
    from .inspect.display import display as display
    from .inspect.compare.comparison import compare as compare
    from .inspect.retrace import explain_retraces as explain_retraces
    from .inspect.tabulate import tabulate as tabulate
    from .edit.quantized import Quantized as Quantized
    from .edit.quantized import dequantize as dequantize
    from .edit.quantized import quantize as quantize
    from . import training as training
    from .training.ema import EMA as EMA
    from .training.loss_scaling import DynamicLossScale as DynamicLossScale
    from .training.metric import Metric as Metric
    from .training.metrics import MultiMetric as MultiMetric
    from .training import metrics as metrics
    from .training.optimizer import ModelAndOptimizer as ModelAndOptimizer
    from .training.optimizer import OptArray as OptArray
    from .training.optimizer import OptState as OptState
    from .training.optimizer import OptVariable as OptVariable
    from .training.optimizer import Optimizer as Optimizer
    from .training import optimizer as optimizer
    from .training.train_state import TrainState as TrainState
    from .util.compilation_cache import cache as cache
    from .transforms.jit.stages import load_compiled as load_compiled


__version__ = "0.1.0"


if not TYPE_CHECKING:  # to a type checker any other name is an error

    def __getattr__(name: str) -> object:
        """Load a name whose module is imported on first use."""
        if name == "__all__":  # for ``from plait import *``, which needs no other library
            return [name for name in __dir__() if name not in _public.LAZY]
        if name not in _public.PUBLIC:
            where = f"; it is {__name__}.{_public.ELSEWHERE[name]}.{name}" if name in _public.ELSEWHERE else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
        return globals().setdefault(name, _public_modules.public_value(name))


def __dir__() -> list[str]:
    return sorted(_public.PUBLIC)


if os.environ.get("PLAIT_EXPLAIN_RETRACES", "0") not in ("", "0"):
    from .inspect.retrace import explain_retraces as _explain_retraces

    _explain_retraces().everywhere()
