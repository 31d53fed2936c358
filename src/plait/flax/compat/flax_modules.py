"""Where plait has the names of each module of Flax NNX, for ``plait.as_flax``.

Each Flax module provides the names of the plait modules listed for it here, in this order, and every public name of
plait: a program may write ``nnx.Linear`` as ``nnx.nn.linear.Linear``. Flax's private names are not here, except the few
that published packages use.
"""

from __future__ import annotations

# Modules below flax.nnx that have the same path below plait.
_SAME_PLACE = (
    "bridge bridge.interop bridge.module bridge.variables bridge.wrappers compat filterlib graph "
    "nn.activations nn.initializers proxy_caller rnglib spmd statelib training training.ema "
    "training.metrics training.optimizer variablelib"
)
# Modules for which plait has only its public names.
_PUBLIC_NAMES = (
    "deprecations extract helpers nn nn.stochastic transforms transforms.autodiff transforms.compilation "
    "transforms.general transforms.iteration transforms.transforms visualization"
)
# Flax module below flax.nnx → modules below plait, separated by spaces.
HOMES: dict[str, str] = {
    "": "",
    **{path: path for path in _SAME_PLACE.split()},
    **dict.fromkeys(_PUBLIC_NAMES.split(), ""),
    "graphlib": "graph",
    "ids": "flax.compat.ids",
    "summary": "",
    "module": "flax.compat.small_functions",
    "nn.attention": "nn.dot_product",
    "nn.dtypes": "nn.promotion",
    "nn.linear": "nn.initializers flax.compat.small_functions",
    "nn.lora": "nn.initializers",
    "nn.normalization": "nn.initializers",
    "nn.recurrent": "nn.recurrent nn.initializers",
    "pytreelib": "core.nodes.attributes flax.compat.traces",
    "reprlib": "flax.compat.reprs",
    "tracers": "flax.compat.traces",
    "traversals": "core.states.mappings",
}

# Aliases of Flax modules.
SAME: dict[str, str] = {
    "metrics": "training.metrics",
    "object": "pytreelib",
    "optimizer": "training.optimizer",
    "wrappers": "bridge.wrappers",
}

_KEY = {"Key": "util.paths:Key"}
_PRIVATE = "flax.compat.private_functions"

# Flax module → name → a public name of plait, or a module below plait and the name in it.
RENAMED: dict[str, dict[str, str]] = {
    "bridge.module": {"MODULE_CONTEXT": f"{_PRIVATE}:MODULE_CONTEXT"},
    "nn.linear": {"_conv_dimension_numbers": f"{_PRIVATE}:conv_dimension_numbers"},
    "nn.normalization": {
        "_canonicalize_axes": f"{_PRIVATE}:canonicalize_axes",
        "_compute_stats": f"{_PRIVATE}:compute_stats",
        "_normalize": f"{_PRIVATE}:normalize",
    },
    "nn.recurrent": {"_select_last_carry": f"{_PRIVATE}:select_last_carry"},
    "transforms.transforms": {
        "_resolve_bound_callable": f"{_PRIVATE}:resolve_bound_callable",
        "resolve_kwargs": f"{_PRIVATE}:resolve_kwargs",
    },
    "filterlib": {
        **_KEY,
        "Any": ":Any",
        "Filter": "typing:FilterLiteral",
        "PathParts": "util.paths:Path",
        "filters_to_predicates": "filterlib:resolve_filters",
    },
    "graph": _KEY,
    "graphlib": _KEY,
    "rnglib": _KEY,
    "statelib": _KEY,
    "pytreelib": {"ObjectState": "flax.compat.traces:PytreeState"},
}
