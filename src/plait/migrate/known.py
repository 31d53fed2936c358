"""What is known of the names of Flax NNX: which of them plait has, and what it does otherwise."""

from __future__ import annotations

import importlib

from .._public import LAZY_MODULES, MODULES, PUBLIC

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
    if not path:
        return True
    if path[0] not in PUBLIC:
        return path[0].startswith("__")
    home = {**MODULES, **LAZY_MODULES}.get(path[0])
    if home is None or len(path) == 1:
        return True
    module = importlib.import_module(f"..{home}", __package__)
    return hasattr(module, path[1])


def is_module(name: str) -> bool:
    """Whether ``plait.name`` is a module that can be imported."""
    return name in MODULES or name in LAZY_MODULES


def difference(path: tuple[str, ...]) -> str:
    """What plait does otherwise with a name; empty if nothing is known."""
    return DIFFERENCES.get(path[0], "") if path else ""
