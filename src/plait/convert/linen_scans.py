"""Layers that Flax stacked, taken apart: an array for each layer, under the names of a list.

``nn.scan(Block, variable_axes={"params": 0}, ...)(name="blocks")`` stores ``params.blocks.linear.kernel`` with an axis
of layers in front. Where the model has a list or a ``Stack`` of modules at ``blocks``, the checkpoint then has
``params.blocks.3.linear.kernel`` for each layer. A name with a range, ``params.blocks.1:24:6.linear.kernel``, stands
for those layers of the list. A checkpoint of NNX has the same names without a collection.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint.stored import StoredArray
from ..core.nodes.containers import List
from ..core.nodes.module import Module
from ..core.nodes.nodes import children_of, visit
from ..util.paths import layers_of

# The path of a list as parts of a name → its modules.
Lists = Mapping[tuple[str, ...], Sequence[Any]]


def take_layers_apart(
    arrays: dict[str, StoredArray], found: dict[str, list[str]], model: Any, *, has_collections: bool = True
) -> None:
    """Replace each name of stacked layers by the names of the layers, in place.

    Args:
        arrays: the arrays of the checkpoint, by name; those of layers are added as ``blocks.linear.kernel[3]``.
        found: names of the model, each with its names in the checkpoint.
        model: where stacks have been made lists.
        has_collections: whether the names begin with a collection.
    """
    before = int(has_collections)
    lists = {tuple(map(str, path)): modules for path, modules in _lists_of(model)}
    names = list(found) if lists else []
    while names:
        name = names.pop()
        for layer, sources in _layers(name, found[name], arrays, lists, before):
            found.pop(name, None)
            found.setdefault(layer, []).extend(sources)
            names.append(layer)  # there may be a list in each layer


def _lists_of(model: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    for place in visit(model):
        if isinstance(place.value, (List, list, tuple)) and place.first is None:
            modules = list(place.value)
            if modules and all(isinstance(module, Module) for module in modules):
                yield place.path, modules


def _layers(
    name: str, sources: Sequence[str], arrays: dict[str, StoredArray], lists: Lists, before: int
) -> list[tuple[str, list[str]]]:
    """The names of the layers of a name, each with its sources; none if the name is not one of stacked layers."""
    collection, parts = name.split(".")[:before], name.split(".")[before:]
    for count in range(len(parts)):
        modules = lists.get((*parts[:count],))
        if modules is None or parts[count].isdecimal():
            continue
        layers, rest = layers_of(parts[count]), parts[count + 1 :]
        if layers is None:
            layers, rest = range(len(modules)), parts[count:]
        shapes = [arrays[source].shape for source in sources]
        is_part = bool(rest) and rest[0] in {str(key) for key, _ in children_of(modules[0])}
        if not rest or not all(shape and (is_part or shape[0] == len(layers)) for shape in shapes):
            continue
        apart = [_taken_apart(source, arrays) for source in sources]
        found = []
        for place in range(max(map(len, apart))):  # more than there are modules, if the checkpoint has more
            layer = ".".join([*collection, *parts[:count], str(layers.start + layers.step * place), *rest])
            found.append((layer, [names[place] for names in apart if place < len(names)]))
        return found
    return []


def _taken_apart(source: str, arrays: dict[str, StoredArray]) -> list[str]:
    """The names of the layers of an array, which are added to the arrays."""
    whole = _Whole(arrays[source])
    names = [f"{source}[{number}]" for number in range(arrays[source].shape[0])]
    for number, name in enumerate(names):
        arrays[name] = StoredArray(whole.stored.shape[1:], whole.stored.dtype, functools.partial(whole.layer, number))
    return names


class _Whole:
    """A stacked array, which is read once and kept until its last layer is read."""

    def __init__(self, stored: StoredArray) -> None:
        self.stored = stored
        self.unread = set(range(stored.shape[0]))
        self.values: np.ndarray | None = None

    def layer(self, number: int) -> np.ndarray:
        values = self.stored.view() if self.values is None else self.values
        self.unread.discard(number)
        self.values = values if self.unread else None
        return values[number]
