"""Where the names of each module of Flax NNX are in plait.

A module of Flax holds the names of the plait modules beside it here, in this order, and every public name of plait: a
program may spell ``nnx.Linear`` as ``nnx.nn.linear.Linear``. What is private in Flax is not here, but for the few names
that published packages use.
"""

from __future__ import annotations

# Flax module below flax.nnx → modules below plait, with spaces between them.
HOMES: dict[str, str] = {
    "": "",
    "bridge": "bridge",
    "bridge.interop": "bridge.interop",
    "bridge.module": "bridge.module",
    "bridge.variables": "bridge.variables",
    "bridge.wrappers": "bridge.wrappers",
    "compat": "compat",
    "extract": "",
    "filterlib": "filterlib",
    "graph": "graph",
    "graphlib": "graph",
    "helpers": "",
    "module": "compat.small_functions",
    "nn": "",
    "nn.activations": "nn.activations",
    "nn.attention": "nn.dot_product",
    "nn.dtypes": "nn.promotion",
    "nn.initializers": "nn.initializers",
    "nn.linear": "nn.initializers compat.small_functions",
    "nn.lora": "nn.initializers",
    "nn.normalization": "nn.initializers",
    "nn.recurrent": "nn.initializers",
    "nn.stochastic": "",
    "proxy_caller": "proxy_caller",
    "pytreelib": "core.objects.attributes compat.traces",
    "reprlib": "compat.reprs",
    "rnglib": "rnglib",
    "spmd": "spmd",
    "statelib": "statelib",
    "tracers": "compat.traces",
    "training": "training",
    "training.ema": "training.ema",
    "training.metrics": "training.metrics",
    "training.optimizer": "training.optimizer",
    "transforms": "",
    "transforms.autodiff": "",
    "transforms.compilation": "",
    "transforms.general": "",
    "transforms.iteration": "",
    "transforms.transforms": "",
    "traversals": "compat.mappings",
    "variablelib": "variablelib",
    "visualization": "",
}

# Second names of modules of Flax.
SAME: dict[str, str] = {
    "metrics": "training.metrics",
    "object": "pytreelib",
    "optimizer": "training.optimizer",
    "wrappers": "bridge.wrappers",
}

# Flax module → name → a public name of plait, or a module below plait and the name in it.
RENAMED: dict[str, dict[str, str]] = {
    "": {"PureState": "compat.small_functions:PureState", "vars_as": ":with_vars"},
    "filterlib": {
        "Any": ":Any",
        "Filter": "typing:FilterLiteral",
        "PathParts": "paths:Path",
        "filters_to_predicates": "filterlib:resolve_filters",
    },
    "graph": {"vars_as": ":with_vars"},
    "graphlib": {"vars_as": ":with_vars"},
    "pytreelib": {"ObjectState": "compat.traces:PytreeState"},
}
