"""The costs of a model's modules for given inputs, for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...util.paths import Path, parse_path
from ..cost import cost
from ..observe.module_names import module_places
from ..tabulate import on_arrays
from .outline import Call


def costs_of(
    model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any], calls: Mapping[Path, Sequence[Call]]
) -> dict[Path, dict[str, float]]:
    """The costs of each module alone, by name; the page sums those below a module.

    Operations are counted as ``plait.cost`` does.
    """
    call, given = on_arrays("__call__", (inputs, options))
    found: dict[Path, dict[str, float]] = {}
    roots = [model, *given]
    (start, _), *_ = module_places(roots, lambda: ["model"] * len(roots))  # empty, unless an input has modules, too
    for row in cost(call, model, *given, compile=False).modules:
        path = parse_path(row.path) if row.path else ()
        if path[: len(start)] == start:
            found.setdefault(path[len(start) :], {})["FLOPs"] = row.flops
    for path, made in calls.items():
        size = sum(each.times * each.output_bytes for each in made)
        found.setdefault(path, {})["Bytes of outputs"] = float(size)
    return found
