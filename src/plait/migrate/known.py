"""The public names of Flax NNX: which of them plait has, and which behave differently."""

from __future__ import annotations

import importlib

from .._public import LAZY_MODULES, MODULES
from ..compat.flax_modules import HOMES, SAME
from ..compat.flax_paths import ROOT, find

# What to review in a migrated program, by the name that it uses. docs/migrating.md has the full list.
DIFFERENCES: dict[str, str] = {
    "BatchNorm": "warns if it trains on one value per feature",
    "MultiHeadAttention": "decoding past the end of the cache raises; precision always applies",
    "PReLU": "returns floats for integers",
    "RNN": "after a sequence of length 0, the carry is the initial carry",
    "SpectralNorm": "weights keep their dtype",
    "WeightNorm": "scales are Param; weights keep their dtype",
    "custom_vjp": "a parameter used both inside and outside the rule gets both parts of its gradient",
    "merge": "makes new variables; copy=False reuses those of the state",
    "split": "the leaves of the state are detached: apply changes with nnx.update(model, state)",
    "state": "its leaves are detached: apply changes with nnx.update(model, state)",
    "variables": "returns the model's own variables",
}

# Differences that depend on the arguments of a call.
OLD_OPTIMIZER = (
    "needs to know what it trains: nnx.Optimizer(model, tx, wrt=nnx.Param), then optimizer.update(model, grads)"
)
OLD_UPDATE = "takes the model too: optimizer.update(model, grads)"
NO_HIJAX = "hijax=True is not supported, nor planned"


def has_name(path: tuple[str, ...]) -> bool:
    """Whether plait has ``plait.a.b`` for the path ``("a", "b")``. Members of a class are not checked."""
    place = ""
    for step in path:
        below = f"{place}.{step}" if place else SAME.get(step, step)
        if below in HOMES:
            place = below
        elif place in HOMES and step not in _OTHER_MODULES:
            return step.startswith("__") or is_found(place, step)
        elif place in HOMES:
            place = step
        else:
            return hasattr(importlib.import_module(f"..{_OTHER_MODULES[place]}", __package__), step)
    return True


_OTHER_MODULES = {name: home for name, home in {**MODULES, **LAZY_MODULES}.items() if SAME.get(name, name) not in HOMES}


def is_found(place: str, name: str) -> bool:
    """Whether plait's counterpart of the Flax module at ``place`` has this name."""
    try:
        find(ROOT, place, name)
    except AttributeError:
        return False
    return True


def is_module(*path: str) -> bool:
    """Whether ``plait.a.b`` is a module that can be imported."""
    name = ".".join(path)
    return name in MODULES or name in LAZY_MODULES or name in HOMES


def difference(path: tuple[str, ...]) -> str:
    """How plait differs for a name; empty if there is no known difference."""
    return DIFFERENCES.get(path[0], "") if path else ""
