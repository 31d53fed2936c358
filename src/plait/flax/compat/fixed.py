"""The public functions that take modes, with graph mode and graph updates fixed. (rule X29)"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from ..._public import PUBLIC

_WITH_MODES = (
    "jit grad value_and_grad custom_vjp vjp jvp remat vmap pmap scan while_loop fori_loop cond switch eval_shape "
    "checkify shard_map split state clone graphdef flatten iter_graph iter_modules iter_children recursive_map view "
    "view_info split_rngs fork_rngs reseed backup_keys cached_partial get_abstract_model"
)
NAMES = tuple(name for name in _WITH_MODES.split() if name in PUBLIC)


def fixed(name: str) -> Any:
    """The function of that name with its modes fixed, looked up on first use wherever it lives."""
    function = getattr(importlib.import_module(f"...{PUBLIC[name]}", __package__), name)
    takes = inspect.signature(function).parameters
    modes = {mode: True for mode in ("graph", "graph_updates") if mode in takes}
    return functools.update_wrapper(functools.partial(function, **modes), function)
