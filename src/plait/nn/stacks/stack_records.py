"""Values sown by the layers of a stack: one value per layer in the result of ``capture``.

The record of a stack holds the records of its layers, under ``layers``. A view sows into the record of its layer,
which has an identity: a transform of the view, or of the whole model, that sows puts the values into the same record.
Views that were made before a capture get their records when it begins, and no view keeps one when it ends. A stack that
has a record calls its views one after the other. So a transform around the stack meets the values of each layer, as it
does with a list, and may put axes where it likes. (rule ST8)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import jax
import jax.numpy as jnp

from ...core.intermediates.sowing import RECORD
from ...core.nodes.nodes import iter_graph_nodes
from ...core.nodes.pytree import Pytree
from ...core.variables.cells import mark_changed
from ...core.variables.variables import Variable
from ...util.jax_versions import trace_state
from ...util.paths import Path, format_path, has_layers, iter_layer_paths, layers_of, parse_path
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


def sown_values(path: Path, record: Mapping[str, Any]) -> Iterator[tuple[Path, Variable[Any]]]:
    """The variables in the record of a module; of a stack, also those of its layers."""
    yield from (((*path, name), variable) for name, variable in record["values"].items())
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
