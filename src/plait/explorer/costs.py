"""The costs of a model's modules for given inputs, for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ground.paths import Path, parse_path
from ..inspect.cost import cost
from ..inspect.tabulate import on_arrays
from .outline import Call


def costs_of(
    model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any], calls: Mapping[Path, Sequence[Call]]
) -> dict[Path, dict[str, float]]:
    """The costs of each module alone, by name; the page sums those below a module.

    Operations are those of the program before optimisation; the body of a loop counts once per iteration.
    """
    call, given = on_arrays("__call__", (inputs, options))
    found: dict[Path, dict[str, float]] = {}
    for row in cost(call, model, *given, compile=False).modules:
        found.setdefault(parse_path(row.path) if row.path else (), {})["FLOPs"] = row.executed_flops
    for path, made in calls.items():
        size = sum(each.times * each.output_bytes for each in made)
        found.setdefault(path, {})["Bytes of outputs"] = float(size)
    return found
