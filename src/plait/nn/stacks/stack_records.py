"""Values sown by the layers of a stack: stacked while the layers run, and one value per layer in the result of
``capture``.

The record of a stack holds the records of its layers, under ``layers``. A view sows into the record of its layer,
which has an identity: a transform of the view, or of the whole model, that sows puts the values into the same record.
Views that were made before a capture get their records when it begins, and no view keeps one when it ends. For the
loop, what the layers have sown so far is stacked and handed to the record of the stacked block, and what comes out
is divided again at once. So a transform around the stack meets the values of each layer, as it does with a list, and
may put axes where it likes. (rule ST8)
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...core.intermediates.sowing import RECORD, sows
from ...core.nodes.nodes import iter_graph_nodes
from ...core.nodes.pytree import Pytree
from ...core.variables.cells import mark_changed
from ...core.variables.variables import Variable
from ...errors import ArgumentError
from ...util.jax_versions import trace_state
from ...util.paths import Path, format_path, has_layers, iter_layer_paths, layers_of, parse_path
from ...util.words import describe_type
from .stacking import ViewInfo

Record = MutableMapping[str, Any]

_LAYERS = "layers"


class LayerRecord(Pytree, MutableMapping[str, Any]):
    """The record of a module in one layer. A graph node, so that a transform writes back into the same record."""

    def __init__(self, entries: Mapping[str, Any], trace: Any) -> None:
        self.__dict__.update(entries)
        self._pytree__info.trace = trace

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        mark_changed(self._pytree__info)

    def __delitem__(self, name: str) -> None:
        del self.__dict__[name]
        mark_changed(self._pytree__info)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    __eq__, __hash__ = object.__eq__, object.__hash__  # pyright: ignore[reportAssignmentType]  # not those of mappings


# id of a view → the view. What it is a view of is in its info.
_views: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def with_records(stack: Any, layer: int, key: str, view: Any) -> Any:
    """A new view of a layer, whose modules sow into the records of the layer during a capture.

    Args:
        key: of the block that holds the layer.
    """
    view._pytree__info.source = weakref.ref(stack), layer, key
    _views[id(view)] = view
    if RECORD in stack.__dict__:
        _give_records(stack, layer, key, view)
    return view


def records_to_views(modules: Iterable[Any]) -> None:
    """Give the existing views of stacks among these modules the records that their layers have now, or take them
    away."""
    stacks = {id(module) for module in modules}
    for view in [ref() for ref in _views.valuerefs()]:
        if view is not None and type(view._pytree__info) is ViewInfo:
            of, layer, key = view._pytree__info.source
            stack = of()
            if stack is not None and id(stack) in stacks:
                nodes = _give_records(stack, layer, key, view)
                for node in nodes:
                    node._pytree__info.mark_rebuilt()
                records_to_views(nodes)


def _give_records(stack: Any, layer: int, key: str, view: Any) -> list[Any]:
    """Let the modules of a view have the records of the layer, or none, as the stack; returns those that changed."""
    record: Record | None = stack.__dict__.get(RECORD)
    if record is not None and stack._pytree__info.trace is not trace_state.value:
        record = {}  # sowing here is an error: nothing may be added to a record of another trace
    stacked = dict(iter_graph_nodes(stack.__dict__[key]))
    changed = []
    for path, module in iter_graph_nodes(view):
        like = stacked[path].__dict__.get(RECORD) if path in stacked and isinstance(module, Pytree) else None
        own = module.__dict__.get(RECORD) if isinstance(module, Pytree) else None
        if record is None or like is None:
            wanted = None
        elif has_layers(path):  # in a stack of the block: its loop needs the form of a record alone
            wanted = _without_values(like)
        else:
            wanted = _record_in(record, layer, path, like, stack._pytree__info.trace)
        if wanted is not own:
            if wanted is None:
                del module.__dict__[RECORD]
            else:
                module.__dict__[RECORD] = wanted
            changed.append(module)
    return changed


def _without_values(record: Record) -> dict[str, Any]:
    return {**{key: value for key, value in record.items() if key != _LAYERS}, "values": {}}


def _record_in(record: Record, layer: int, path: Path, like: Record, trace: Any = None) -> Record:
    """The record of the module at a path of a layer, in the record of the stack; a new one is like another, without its
    values.

    Args:
        trace: that of the module; ``None`` means the current one.
    """
    records = record.setdefault(_LAYERS, {}).setdefault(layer, {})
    text = format_path(path)
    if text not in records:
        records[text] = LayerRecord(_without_values(like), trace_state.value if trace is None else trace)
    return records[text]


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
        layer = layer_of_sown(variable, (index,))
        if name not in own["values"]:
            own["values"][name] = layer
        elif variables:  # into the same variable, which an outer stack may have handed in
            own["values"][name].set_raw_value(layer.get_raw_value())
        else:
            own["values"][name] = _joined(own["values"][name], layer, (*path, name))
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
            yield (*layer, name), layer_of_sown(variable, index) if index else variable
    for number, records in record.get(_LAYERS, {}).items():
        for text, inner in records.items():
            yield from sown_values((*path, number, *parse_path(text)), inner)


def preset(records: Mapping[Path, Record], module: Path, initial: Mapping[Path, Mapping[str, Variable[Any]]]) -> None:
    """Put initial values into the record of a module; for a stacked module, into new records of its layers.

    The records are made before the model runs, because a loop around the model may not add any.

    Args:
        records: of all modules, by their paths.
        initial: those of each module; of a stacked one, of each layer, by its path in a list.
    """
    places = [place for place, key in enumerate(module) if layers_of(key) is not None]
    for layer, _ in iter_layer_paths(module):
        record = records[module[: places[0]] if places else module]
        for place, end in zip(places, [*places, len(module)][1:], strict=True):
            record = _record_in(record, layer[place], module[place + 1 : end], records[module[:end]])
        record["values"].update(initial.get(layer, {}))


def layer_of_sown(variable: Variable[Any], index: tuple[int, ...]) -> Variable[Any]:
    """A copy of a sown variable; of a stacked one, of one layer, by its index in each stack."""
    if not index:
        return variable.copy()
    return variable.copy(jax.tree.map(lambda array: array[index], variable.get_raw_value()))


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
