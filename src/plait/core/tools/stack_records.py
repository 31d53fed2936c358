"""Values sown by the layers of a stack: stacked while the layers run, and one value per layer in the result of
``capture``.

A block that runs in the loop of a stack sows into the record of the stacked block, and scan stacks its values. A view
has its own record, which is stored in the stack's record under ``layers``. (rule ST8)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ...paths import Path, format_path, iter_layer_paths, parse_path
from ..objects.sowing import RECORD
from ..objects.variables import Variable
from ..objects.visit import iter_graph_nodes

_LAYERS = "layers"


def with_records(stack: Any, layer: int, view: Any) -> Any:
    """The view of a layer, whose modules sow into the record of the stack during a capture."""
    record = stack.__dict__.get(RECORD)
    if record is not None:
        own = record.setdefault(_LAYERS, {}).setdefault(layer, {})
        for path, module in iter_graph_nodes(view):
            if RECORD in getattr(module, "__dict__", ()):
                module.__dict__[RECORD] = own.setdefault(format_path(path), module.__dict__[RECORD])
    return view


def sown_values(path: Path, record: Mapping[str, Any]) -> Iterator[tuple[Path, Variable[Any]]]:
    """The variables in the record of a module, one for each layer that the path of the module represents."""
    for name, variable in record["values"].items():
        for layer, index in iter_layer_paths(path):
            own = variable if not index else variable.copy(_slice(variable.get_raw_value(), index))
            yield (*layer, name), own
    for number, records in record.get(_LAYERS, {}).items():
        for text, inner in records.items():
            yield from sown_values((*path, number, *parse_path(text)), inner)


def _slice(value: Any, index: tuple[int, ...]) -> Any:
    return jax.tree.map(lambda array: array[index], value)


def at_stacked_paths(flat: Mapping[Path, Any], modules: Iterable[Path]) -> dict[Path, Any]:
    """Combine leaves at the paths of layers into leaves at the paths of the stacked blocks among the modules.

    Leaves at other paths, and leaves that some layers lack, are unchanged.
    """
    found = dict(flat)
    names: dict[Path, list[Any]] = {}
    for path in flat:
        names.setdefault(path[:-1], []).append(path[-1])
    for module in modules:
        layers = [*iter_layer_paths(module)]
        if not layers[0][1]:
            continue
        shape = tuple(size + 1 for size in layers[-1][1])
        for name in names.get(layers[0][0], ()):
            places = [(*layer, name) for layer, _ in layers]
            if all(place in flat for place in places) and math.prod(shape) == len(places):
                leaves = [found.pop(place) for place in places]
                found[(*module, name)] = _together(leaves, shape)
    return found


def _together(leaves: list[Any], shape: tuple[int, ...]) -> Any:
    values = [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in leaves]
    value = jax.tree.map(lambda *x: jnp.stack(x).reshape(*shape, *jnp.shape(x[0])), *values)
    return leaves[0].copy(value) if isinstance(leaves[0], Variable) else value
