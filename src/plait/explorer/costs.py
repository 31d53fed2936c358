"""The costs of a model's modules for given inputs, for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ground.paths import Path, parse_path
from ..inspect.cost import cost
from .calls import settings_of
from .outline import Call


def costs_of(
    model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any], calls: Mapping[Path, Sequence[Call]]
) -> dict[Path, dict[str, float]]:
    """The costs of each module alone, by name; the page sums those below a module.

    Operations are those of the program before optimisation; the body of a loop counts once per iteration.
    """
    arrays, settings = settings_of(options)

    def run(model: Any, inputs: tuple[Any, ...], arrays: dict[str, Any]) -> Any:
        return model(*inputs, **arrays, **settings)

    found: dict[Path, dict[str, float]] = {}
    for row in cost(run, model, inputs, arrays, compile=False).modules:
        found.setdefault(parse_path(row.path) if row.path else (), {})["FLOPs"] = row.executed_flops
    for path, made in calls.items():
        size = sum(call.times * call.output_bytes for call in made)
        found.setdefault(path, {})["Bytes of outputs"] = float(size)
    return found
