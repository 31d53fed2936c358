"""The public names, plait's own and those for Flax compatibility: name → the module below ``plait`` that defines it.

Tests compare ``dir(plait)``, the reference pages and the type checkers' view with this list. Those of
the heart are imported with the package; the others load on first use.
"""

from __future__ import annotations

# plait's own names.
_NAMES = {
    "core.graph.axes": "PARTITION_NAME",
    "core.nodes.attributes": "Data Static data has_data is_data register_data_type static",
    "inspect.observe.capture": "capture",
    "core.nodes.containers": "Dict List",
    "core.graph.diff": "GraphDiff diff",
    "core.variables.filters": "All Everything Not Nothing OfType PathContains WithTag to_predicate",
    "core.states.flat_graphs": "unflatten",
    "core.functional.update": "update",
    "core.graph.graphdef": "GraphDef",
    "core.nodes.module": "Module Object dataclass",
    "core.nodes.pytree": "Pytree",
    "core.rngs": "RngCount RngKey RngState RngStream Rngs",
    "core.variables.variable_metadata": "VariableMetadata",
    "partitioning.initializers": "with_metadata with_partitioning",
    "core.states.pure_dicts": "as_pure to_pure_dict",
    "core.states.state": "FlatState State from_flat_state to_flat_state",
    "core.states.state_functions": "filter_state map_state merge_state split_state",
    "edit.selection": "Selection select trainable",
    "core.graph.traversal": (
        "check_pytree find_duplicates iter_children iter_graph iter_module_children iter_modules set_metadata variables"
    ),
    "inspect.observe.nonfinite": "debug_nans find_nonfinite",
    "core.variables.variable_kinds": "BatchStat Cache Intermediate LoRAParam Param Perturbation",
    "core.variables.variables": "Variable",
    "edit.pop": "pop",
    "edit.reseeding": "reseed",
    "edit.views": "map recursive_map view view_info with_attributes",
    "core.functional.merge": "clone",
    "core.functional.split": "graphdef",
    "core.states.live": "flatten merge split state",
    "nn.activations": (
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax "
        "logsumexp mish one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid "
        "squareplus standardize swish tanh"
    ),
    "nn.attention": "MultiHeadAttention",
    "nn.cells": "GRUCell LSTMCell OptimizedLSTMCell RNNCellBase SimpleCell",
    "nn.conv": "Conv ConvTranspose",
    "nn.dot_product": "dot_product_attention",
    "nn.dropout": "Dropout",
    "nn.embedding": "Embed",
    "nn.linear": "Einsum Linear LinearGeneral",
    "edit.adapters": "add_lora merge_lora unmerge_lora use_lora",
    "nn.lora": "LoRA LoRALinear",
    "nn.masks": "combine_masks make_attention_mask make_causal_mask",
    "nn.batch_norm": "BatchNorm",
    "nn.group_norm": "GroupNorm",
    "nn.norm": "InstanceNorm LayerNorm RMSNorm",
    "nn.pooling": "avg_pool max_pool min_pool pool",
    "nn.prelu": "PReLU",
    "nn.recurrent": "Bidirectional RNN",
    "nn.reparametrisation": "SpectralNorm WeightNorm",
    "nn.rotary": "RoPE apply_rotary_embedding dot_product_attention_with_rope",
    "nn.stacks.per_layer": "PerLayer",
    "nn.sequential": "Sequential",
    "nn.stacks.stack": "Stack",
    "edit.stack_conversion": "as_list as_stack",
    "partitioning.activations": "with_sharding_constraint",
    "partitioning.axis_rules": "logical_axis_rules",
    "partitioning.shardings": "as_abstract get_abstract_model",
    "partitioning.specs": "get_named_sharding get_partition_spec",
    "inspect.observe.output_gradients": "capture_gradients",
    "transforms.selections": "DiffState",
    "transforms.call.prefixes": "Carry StateAxes StateSharding",
    "transforms.autodiff": "grad value_and_grad",
    "transforms.batching": "pmap vmap",
    "transforms.branches": "cond switch",
    "transforms.custom_rules": "custom_jvp custom_vjp",
    "transforms.jacobians": "hessian hvp jacfwd jacrev",
    "transforms.jit.function": "jit",
    "transforms.jit.shapes": "checkify eval_shape make_jaxpr",
    "transforms.lax_map": "lax_map",
    "transforms.loops": "fori_loop scan while_loop",
    "transforms.remat": "remat",
    "transforms.sharded": "shard_map",
    "transforms.stream_rules": "with_rngs",
    "transforms.streams": "backup_keys fork_rngs restore_rngs split_rngs",
    "transforms.tangents": "jvp linearize vjp",
}

# Names for programs written for Flax. New programs do not need them.
_NAMES_FOR_FLAX = {
    "core.nodes.module": "M",
    "flax.compat.variable_defaults": "use_eager_sharding using_eager_sharding var_defaults",
    "core.states.graph_state": "GraphState PureState",
    "core.states.pure_dicts": "replace_by_pure_dict restore_int_paths",
    "edit.views": "with_vars",
    "partitioning.shardings": "abstract_with_sharding",
    "core.graph.modes": "set_graph_mode set_graph_updates",
    "core.states.live": "call unpack",
    "flax.compat.update_context": (
        "MergeContext SplitContext UpdateContext current_update_context merge_context split_context update_context"
    ),
    "core.intermediates.variable_names": "register_variable_name variable_name_from_type variable_type_from_name",
    "core.states.variable_state": "VariableState",
    "core.variables.variables": "A",
    "flax.compat.partials": "cached_partial jit_partial",
    "transforms.call.prefixes": "prefix",
    "transforms.axis_names": "transform_metadata",
    "flax.compat.tree_states": "NodeStates from_tree to_tree",
    "typing": "Initializer",
}

# Public modules.
_MODULES = {
    "initializers": "nn.initializers",
    "meta": "partitioning.boxes",
    "nn": "nn",
    "partitioning": "partitioning",
    "errors": "errors",
    "graph": "flax.compat.graph",
}
_MODULES_FOR_FLAX = {
    "compat": "flax.compat",
    "filterlib": "core.variables.filters",
    "spmd": "flax.compat.spmd",
}
MODULES = {**_MODULES, **_MODULES_FOR_FLAX}

# Names that need a library of their own, or are not needed to define and run a model.
_LAZY_NAMES: dict[str, str] = {
    "inspect.compare.comparison": "compare",
    "inspect.explore.page": "explore",
    "generation.continuation": "generate",
    "inspect.cost": "cost",
    "inspect.display": "display",
    "inspect.retrace": "explain_retraces",
    "inspect.tabulate": "tabulate",
    "util.compilation_cache": "cache",
    "transforms.jit.stages": "load_compiled",
    "edit.quantized": "Quantized dequantize quantize",
    "training.ema": "EMA",
    "training.loss_scaling": "DynamicLossScale",
    "training.metric": "Metric",
    "training.metrics": "MultiMetric",
    "training.train_state": "TrainState",
    "training.optimizer": "ModelAndOptimizer OptArray OptState OptVariable Optimizer",
}
LAZY_MODULES: dict[str, str] = {
    "bridge": "flax.bridge",
    "checkpoint": "checkpoint",
    "comparison": "inspect.compare",
    "convert": "convert",
    "export": "export",
    "generation": "generation",
    "inspect": "inspect",
    "metrics": "training.metrics",
    "models": "models",
    "optimizer": "training.optimizer",
    "training": "training",
}
# Names of public modules that are looked for in ``plait`` itself, for the error that says where they are.
ELSEWHERE = {"fit": "training", "save": "checkpoint", "restore": "checkpoint", "ToNNX": "bridge", "ToLinen": "bridge"}
# Modules that run with ``python -m``, whose names are not public.
PROGRAMS = {"as_flax": "flax.as_flax"}
LAZY: dict[str, str] = {
    **{name: module for module, names in _LAZY_NAMES.items() for name in names.split()},
    **LAZY_MODULES,
}

# Public names that differ from the name in their module.
RENAMED = {
    "Any": ("core.variables.filters", "Any_"),
    "pure": ("core.states.pure_dicts", "as_pure"),
    "vars_as": ("edit.views", "with_vars"),
}
_RENAMED_FOR_FLAX = ("pure", "vars_as")

OWN: dict[str, str] = {
    **{name: module for module, names in _NAMES.items() for name in names.split()},
    **{name: module for name, (module, _) in RENAMED.items() if name not in _RENAMED_FOR_FLAX},
    **_MODULES,
    **LAZY,
}
FOR_FLAX: dict[str, str] = {
    **{name: module for module, names in _NAMES_FOR_FLAX.items() for name in names.split()},
    **{name: RENAMED[name][0] for name in _RENAMED_FOR_FLAX},
    **_MODULES_FOR_FLAX,
}
PUBLIC: dict[str, str] = {**OWN, **FOR_FLAX}
