"""plait.compat: the public functions that know modes, with graph mode and graph updates fixed. (rule X29)

``plait.compat.jit(f)`` is ``plait.jit(f, graph=True, graph_updates=True)``, whatever ``plait.set_graph_mode`` and
``plait.set_graph_updates`` say. Example:

    >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    >>> with plait.set_graph_updates(False):
    ...     plait.compat.jit(lambda model: setattr(model, "extra", 1))(model)
    >>> model.extra
    1
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from .._public import PUBLIC

_WITH_MODES = (
    "jit grad value_and_grad custom_vjp vjp jvp remat vmap pmap scan while_loop fori_loop cond switch eval_shape "
    "checkify shard_map split state clone graphdef flatten iter_graph iter_modules iter_children recursive_map view "
    "view_info split_rngs fork_rngs reseed backup_keys cached_partial get_abstract_model"
)
# Each is looked up on first use, wherever it lives, or this file would import half of the library.
NAMES = tuple(name for name in _WITH_MODES.split() if name in PUBLIC)


def __getattr__(name: str) -> Any:
    """The function of that name, with its modes fixed."""
    if name not in NAMES:
        raise AttributeError(f"module 'plait.compat' has no attribute {name!r}")
    function = getattr(importlib.import_module(f"..{PUBLIC[name]}", __package__), name)
    takes = inspect.signature(function).parameters
    modes = {mode: True for mode in ("graph", "graph_updates") if mode in takes}
    value = functools.update_wrapper(functools.partial(function, **modes), function)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(NAMES)
