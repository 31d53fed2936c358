"""Graph: ``split``, ``merge``, ``update``, ``state``, ``clone`` of a model, and its state as a pytree, beside Flax."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .measure import QUICK, Effort, Loop, compare
from .models import object_model
from .table import Table

BUDGET = 10.0


def operations(nnx: types.ModuleType, count: int) -> dict[str, Callable[[], Any]]:
    """What is measured, each as a function without arguments."""
    model = object_model(nnx, count)
    graphdef, state = nnx.split(model)
    numbers = iter(range(10**9))

    def split_changed() -> Any:
        model.number = next(numbers)
        return nnx.split(model)

    return {
        "split": lambda: nnx.split(model),
        "split by filters": lambda: nnx.split(model, nnx.Param, ...),
        "merge": lambda: nnx.merge(graphdef, state),
        "update": lambda: nnx.update(model, state),
        "state": lambda: nnx.state(model),
        "clone": lambda: nnx.clone(model),
        "jax.tree.flatten of the state": lambda: jax.tree.flatten(state),
        "jax.tree.map over the state": lambda: jax.tree.map(_same, state),
        "split of a model that changed": split_changed,
    }


def _same(leaf: Any) -> Any:
    return leaf


def _loop(call: Callable[[], Any]) -> Loop:
    def loop(calls: int) -> None:
        for _ in range(calls):
            call()

    return loop


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table."""
    import plait

    count = 9 if quick else 1_001
    effort = QUICK if quick else Effort(rounds=41, round_us=8_000.0, fewest_calls=1)
    table = Table(
        f"graph operations on a model of {count} variables", ["operation", "plait µs", "Flax µs", "Flax / plait"]
    )
    ours = operations(plait, count)
    try:
        theirs = operations(importlib.import_module("flax.nnx"), count)
    except ImportError:
        theirs = {}
        table.remarks.append("Flax is not installed: left out.")
    for name, call in ours.items():
        loops = {"plait": _loop(call)}
        if name in theirs:
            loops["Flax"] = _loop(theirs[name])
        found = compare(loops, effort)
        flax = found.get("Flax")
        table.rows.append([name, found["plait"].us, flax.us if flax else "-", flax.ratio if flax else "-"])
    yield table
