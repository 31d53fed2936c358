"""Values sown by the layers of a stack: stacked while the layers run, and one value per layer in the result of
``capture``.

The record of a stack holds the records of its layers, under ``layers``. A view sows into the record of its layer. For
the loop, what the layers have sown so far is stacked and handed to the record of the stacked block, and what comes out
is divided again at once. So a transform around the stack meets the values of each layer, as it does with a list, and
may put axes where it likes. (rule ST8)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import ArgumentError
from ...paths import Path, format_path, has_layers, iter_layer_paths, layers_of, parse_path
from ...words import describe_type
from ..objects.sowing import RECORD, sows
from ..objects.variables import Variable
from ..objects.visit import iter_graph_nodes

Record = dict[str, Any]

_LAYERS = "layers"


def with_records(stack: Any, layer: int, view: Any) -> Any:
    """The view of a layer, whose modules sow into the records of the layer during a capture."""
    record = stack.__dict__.get(RECORD)
    if record is not None:
        for path, module in iter_graph_nodes(view):
            if sows(module) and not has_layers(path):
                module.__dict__[RECORD] = _record_in(record, layer, path, module.__dict__[RECORD])
    return view


def _record_in(record: Record, layer: int, path: Path, like: Record) -> Record:
    """The record of the module at a path of a layer, in the record of the stack; a new one is like another, without its
    values."""
    empty = {**{key: value for key, value in like.items() if key != _LAYERS}, "values": {}}
    return record.setdefault(_LAYERS, {}).setdefault(layer, {}).setdefault(format_path(path), empty)


@contextlib.contextmanager
def layers_recorded(stack: Any, groups: Mapping[str, range]) -> Iterator[None]:
    """Inside the block, stacked blocks run and sow stacked values; afterwards each layer has its own.

    Args:
        groups: the layers of each stacked block, by its key.

    Raises:
        ArgumentError: a layer that has run alone sowed something else than a tuple under the same name.
    """
    record = stack.__dict__.get(RECORD)
    if record is None:
        yield
        return
    handed: dict[int, tuple[Any, list[Any]]] = {}  # by id of the stacked variable: its value, and the layers' variables
    for layers, path, module in _recording(stack, groups):
        known = record.get(_LAYERS, {})
        own = [known.get(layer, {}).get(format_path(path), {}) for layer in layers]
        _stack_into(module.__dict__[RECORD], own, handed)
    try:
        yield
    finally:
        for layers, path, module in _recording(stack, groups):
            sown = module.__dict__[RECORD]
            for index, layer in enumerate(layers):
                if sown["values"] or _LAYERS in sown:
                    _divide_into(_record_in(record, layer, path, sown), sown, index, (layer, *path), handed)
            sown["values"].clear()
            sown.pop(_LAYERS, None)


def _recording(stack: Any, groups: Mapping[str, range]) -> list[tuple[range, Path, Any]]:
    """The modules of stacked blocks that have a record, with their layers and their path in the block."""
    return [
        (layers, path, module)
        for key, layers in groups.items()
        for path, module in iter_graph_nodes(stack.__dict__[key])
        if sows(module)
    ]


def _stack_into(record: Record, own: Sequence[Record], handed: dict[int, tuple[Any, list[Any]]]) -> None:
    """Put the values that all layers have, with equal structures, into the record of the stacked module."""
    for name in own[0].get("values", ()):
        variables = [each.get("values", {}).get(name) for each in own]
        if None not in variables and len({_form(variable) for variable in variables}) == 1:
            value = jax.tree.map(lambda *arrays: jnp.stack(arrays), *(each.get_raw_value() for each in variables))
            stacked = record["values"][name] = variables[0].copy(value)
            handed[id(stacked)] = stacked.get_raw_value(), variables
    for number, records in own[0].get(_LAYERS, {}).items():  # of a stack inside the stack
        for text, like in records.items():
            inner = [each.get(_LAYERS, {}).get(number, {}).get(text, {}) for each in own]
            _stack_into(_record_in(record, number, parse_path(text), like), inner, handed)


def _form(variable: Variable[Any]) -> Any:
    leaves, treedef = jax.tree.flatten(variable.get_raw_value())
    return type(variable), treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _divide_into(
    own: Record, sown: Record, index: int, path: Path, handed: Mapping[int, tuple[Any, list[Any]]]
) -> None:
    """Put one layer of the values of a stacked module into the record of the layer."""
    for name, variable in sown["values"].items():
        value, variables = handed.get(id(variable), (None, []))
        if variables and variable.get_raw_value() is value:
            continue  # it was only read
        layer = variable.copy(_slice(variable.get_raw_value(), (index,)))
        if name in own["values"] and not variables:
            layer = _joined(own["values"][name], layer, (*path, name))
        own["values"][name] = layer
    for number, records in sown.get(_LAYERS, {}).items():
        for text, inner in records.items():
            place = parse_path(text)
            _divide_into(_record_in(own, number, place, inner), inner, index, (*path, number, *place), handed)


def _joined(first: Variable[Any], second: Variable[Any], path: Path) -> Variable[Any]:
    """What a layer sowed alone, and then in the loop, where what only some layers sowed is not known."""
    values = first.get_raw_value(), second.get_raw_value()
    if type(values[0]) is tuple and type(values[1]) is tuple:
        return second.copy((*values[0], *values[1]))
    raise ArgumentError(
        "a layer of a stack sowed a value alone, and again in the loop of the stack",
        at=format_path(("stack", *path)),
        found=f"{describe_type(values[1])}, which the loop cannot combine with the value of one layer",
        expected="values collected in tuples, as by default; or the same layers in both runs",
        do="run the layers one by one: for block in stack: x = block(x)",
    )


def sown_values(path: Path, record: Mapping[str, Any]) -> Iterator[tuple[Path, Variable[Any]]]:
    """The variables in the record of a module, one for each layer that the path of the module represents."""
    for name, variable in record["values"].items():
        for layer, index in iter_layer_paths(path):
            own = variable if not index else variable.copy(_slice(variable.get_raw_value(), index))
            yield (*layer, name), own
    for number, records in record.get(_LAYERS, {}).items():
        for text, inner in records.items():
            yield from sown_values((*path, number, *parse_path(text)), inner)


def preset(records: Mapping[Path, Record], module: Path, values: Mapping[str, Variable[Any]]) -> None:
    """Put initial values into the record of a module; for a stacked module, into new records of its layers.

    The records are made before the model runs, because a loop around the model may not add any.

    Args:
        records: of all modules, by their paths.
    """
    places = [place for place, key in enumerate(module) if layers_of(key) is not None]
    for layer, index in iter_layer_paths(module):
        record = records[module[: places[0]] if places else module]
        for place, end in zip(places, [*places, len(module)][1:], strict=True):
            record = _record_in(record, layer[place], module[place + 1 : end], records[module[:end]])
        for name, variable in values.items():
            record["values"][name] = variable.copy(_slice(variable.get_raw_value(), index)) if index else variable


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
