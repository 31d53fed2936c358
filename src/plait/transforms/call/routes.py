"""Routes in the user's words: which variable, or which part of the output, a value in an outgoing lane is."""

from __future__ import annotations

from typing import Any

import jax

from ...paths import joined
from .crossing import Structure
from .lanes import Lifting, Report


def describe_route(lifting: Lifting, report: Report, lane: int, place: int) -> str:
    """What stands at a place of a lane that came out: ``model.layers[0].mean`` or ``the output[1]['loss']``."""
    outcome = report.outcome
    route = (lane, place)
    if route not in report.values:
        is_plain = (
            [True] * len(report.plain) if outcome.output is None else [g is None for g in outcome.output.graphdefs]
        )
        return _output_places(report, is_plain)[report.plain.index(route)]
    number = report.values.index(route)
    if outcome.arguments is None and number < len(outcome.written):
        return lifting.value_labels()[outcome.written[number]]
    if number in outcome.argument_sources:
        assert outcome.arguments is not None
        leaves = Structure(None, outcome.arguments).leaf_paths()
        root, path = leaves[outcome.argument_sources.index(number)]
        return joined(lifting.root_labels[root], path)
    assert outcome.output is not None
    root, path = outcome.output.leaf_paths()[outcome.output_sources.index(number)]
    is_object = [graphdef is not None for graphdef in outcome.output.graphdefs]
    return joined(_output_places(report, is_object)[root], path)


def _output_places(report: Report, wanted: list[bool]) -> list[str]:
    """Where the wanted leaves of the output stand."""
    treedef = report.treedef if report.outcome.output is None else report.outcome.output.treedef
    markers: list[Any] = [object() for _ in wanted]
    pairs, _ = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(treedef, markers))
    return [
        f"the output{jax.tree_util.keystr(path)}"
        for (path, _), is_wanted in zip(pairs, wanted, strict=True)
        if is_wanted
    ]
