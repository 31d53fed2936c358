"""Settings of Flax outside of ``flax.nnx`` that NNX reads, for ``plait.as_flax``.

They are the flags of ``flax.config``, whose first values the environment sets (``NNX_GRAPH_MODE``, …), and the logical
axis rules that Linen and NNX share.
"""

# Rule X34.

from __future__ import annotations

import functools
import importlib
from typing import Any

from ...core.graph.modes import modes
from ...core.intermediates import sowing
from ...core.settings import defaults, set_default
from ...partitioning import axis_rules

# Flag → the setting that it is the default of.
FLAGS = {
    "flax_always_shard_variable": (defaults, "eager_sharding"),
    "flax_hijax_variable": (defaults, "hijax"),
    "nnx_graph_mode": (modes, "graph"),
    "nnx_graph_updates": (modes, "graph_updates"),
    "nnx_sow_capture_noop": (sowing.settings, "capture_noop"),  # not in Flax 0.12.8
}
# Flag → its value when it was last read; at first Flax's default, so that PLAIT_GRAPH_MODE counts too.
_seen = {"flax_always_shard_variable": True, "nnx_graph_mode": True, "nnx_graph_updates": True}


def share_settings() -> None:
    """Make Flax's flags and axis rules those of plait, for the rest of the process."""
    config = importlib.import_module("flax.configurations").config
    _read(config)
    update = type(config).update

    @functools.wraps(update)
    def updated(self: Any, name_or_holder: Any, value: Any, /) -> None:
        update(self, name_or_holder, value)
        _read(self)

    type(config).update = updated
    set_default(axis_rules.current, "last_counts", True)
    # Flax's functions set and read the field ``rules`` of this object.
    vars(importlib.import_module("flax.core.spmd"))["_axis_rules"] = axis_rules.current


def _read(config: Any) -> None:
    for flag, (settings, name) in FLAGS.items():
        value = getattr(config, flag, False)
        if value != _seen.get(flag, False):
            _seen[flag] = value
            set_default(settings, name, value)
