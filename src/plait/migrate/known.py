"""What is known of the names of Flax NNX: which of them plait has, and what it does otherwise."""

from __future__ import annotations

import importlib

from .._public import LAZY_MODULES, MODULES
from ..compat.flax_modules import HOMES, SAME
from ..compat.flax_paths import ROOT, find

# What a reader of the migrated program should look at, by the name that it uses. docs/migrating.md has the whole list.
DIFFERENCES: dict[str, str] = {
    "BatchNorm": "warns when it trains on one value for each feature",
    "MultiHeadAttention": "a step of decoding past the end of the cache is an error; precision is used in any case",
    "PReLU": "gives floats for integers",
    "RNN": "after a sequence of length 0 the carry is the first one",
    "SpectralNorm": "weights keep their dtype",
    "WeightNorm": "scales are Param; weights keep their dtype",
    "custom_vjp": "a parameter used beside a rule that reads it gets both parts of its gradient",
    "merge": "makes new variables; copy=False takes those of the state",
    "split": "the leaves of the state are detached: changes reach the model through nnx.update(model, state)",
    "state": "its leaves are detached: changes reach the model through nnx.update(model, state)",
    "variables": "gives the live variables of the model",
}

# Differences of a call, told by its arguments.
OLD_OPTIMIZER = (
    "needs to be told what it trains: nnx.Optimizer(model, tx, wrt=nnx.Param), then optimizer.update(model, grads)"
)
OLD_UPDATE = "takes the model too: optimizer.update(model, grads)"
NO_HIJAX = "hijax=True is not there, and not planned"


def has_name(path: tuple[str, ...]) -> bool:
    """Whether plait has ``plait.a.b`` for the path ``("a", "b")``. What stands below a class is not looked at."""
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
    """Whether the module of Flax that has the path ``place`` has this name in plait."""
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
    """What plait does otherwise with a name; empty if nothing is known."""
    return DIFFERENCES.get(path[0], "") if path else ""
