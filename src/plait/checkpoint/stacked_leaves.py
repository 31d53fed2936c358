"""Checkpoints of a list for a model with a stack, and the reverse: which stored arrays make up each leaf of the
objects.

A stack is stored as it is in memory: one array for all layers of a group, under the key that selects them from the
list, ``blocks[0:24].kernel``. A list is stored layer by layer, ``blocks[3].kernel``. So every name shows which layers
its array contains, and a leaf that is not stored under its own name is assembled from the arrays that contain its
layers. (rule ST11)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import GraphError
from ..util.paths import format_path, iter_layer_paths, layers_of, parse_path
from .leaf_descriptions import Description

_MOST_LAYERS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Source:
    """The stored arrays of the layers of one leaf.

    Attributes:
        layers: (stored name, index in that array) of each layer of the leaf, in the order of the leaf's array.
        shape: the shape of the leaf's layer axes; ``()`` for a leaf of one layer.
    """

    layers: tuple[tuple[str, tuple[int, ...]], ...]
    shape: tuple[int, ...]

    def description(self, stored: Mapping[str, Description]) -> Description:
        """The stored parts, described as one leaf; if they differ, the description of the first part that does."""
        parts = [_without_layers(stored[name], len(place)) for name, place in self.layers]
        odd = next((part for part in parts if part != parts[0]), parts[0])
        return {**odd, "shape": [*self.shape, *odd["shape"]]} if "shape" in odd else odd

    def put_together(self, arrays: Mapping[str, Any], like: Any) -> Any:
        """The value of the leaf, in its stored form, with the sharding of the replaced value."""
        parts = [arrays[name][place] if place else arrays[name] for name, place in self.layers]
        if not self.shape:
            return parts[0]
        stack = np.stack if all(isinstance(part, np.ndarray) for part in parts) else jnp.stack
        array = stack(parts)
        array = array.reshape(*self.shape, *array.shape[1:])
        sharding = getattr(like, "sharding", None)
        is_laid_out = isinstance(sharding, NamedSharding) and array.shape == like.shape  # except for key data
        return jax.device_put(array, sharding) if is_laid_out else array


def _without_layers(description: Description, axes: int) -> dict[str, Any]:
    found = dict(description)
    if axes:
        found["shape"] = list(found["shape"][axes:])
    return found


def sources(own: Iterable[str], stored: Mapping[str, Description]) -> dict[str, Source]:
    """The source of each of these leaves, if all its layers are stored under different names."""
    missing = [name for name in own if name not in stored]
    places: dict[Any, tuple[str, tuple[int, ...]]] = {}
    if missing:
        room = _MOST_LAYERS
        for name, description in stored.items():
            layers = _layers(name, description.get("shape", ()), room)
            room -= len(layers)
            places |= {layer: (name, place) for layer, place in layers}
    found = {}
    for name in missing:
        layers = _layers(name)
        if all(layer in places for layer, _ in layers):
            shape = tuple(size + 1 for size in layers[-1][1])
            found[name] = Source(tuple(places[layer] for layer, _ in layers), shape)
    return found


def left_over(found: Iterable[Source], stored: Mapping[str, Description]) -> dict[str, Description]:
    """The layers, by name, that no leaf uses, in stored arrays of which some layers are used."""
    taken: dict[str, set[Any]] = {}
    for source in found:
        for name, place in source.layers:
            taken.setdefault(name, set()).add(place)
    return {
        format_path(layer): _without_layers(stored[name], len(place))
        for name, places in taken.items()
        for layer, place in _layers(name, stored[name].get("shape", ()))
        if place not in places
    }


def _layers(
    name: str, shape: Sequence[int] | None = None, most: int = _MOST_LAYERS
) -> list[tuple[Any, tuple[int, ...]]]:
    """The path of each layer of a stored name, and its index in the array.

    Args:
        shape: that of the stored array. A name that claims other layers than the array has is one leaf.
        most: a name that claims more layers is one leaf. By default, and for all names of a file, more than any model
            has: a file could claim layers of arrays without elements.
    """
    try:
        path = parse_path(name)
    except GraphError:  # a key that is not a literal, such as an enum member
        return [(name, ())]
    sizes = [len(layers) for layers in map(layers_of, path) if layers is not None]
    if shape is not None and (sizes != [*shape[: len(sizes)]] or math.prod(sizes) > most):
        return [(path, ())]
    return [*iter_layer_paths(path)]


def shape_of_stored(like: Any, source: Source, name: str, stored: Description) -> Any:
    """The target for reading a stored array: its own shape, with the dtype and devices of the leaf.

    Args:
        like: the value of the leaf.
    """
    if not hasattr(like, "shape"):
        return like
    axes = len(next(place for each, place in source.layers if each == name))
    if isinstance(like, (np.ndarray, np.generic)):
        return np.broadcast_to(np.zeros((), like.dtype), stored["shape"])
    sharding = getattr(like, "sharding", None)
    if isinstance(sharding, NamedSharding):
        own = (*sharding.spec, *[None] * (len(like.shape) - len(sharding.spec)))
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*[None] * axes, *own[len(source.shape) :]))
    return jax.ShapeDtypeStruct(tuple(stored["shape"]), like.dtype, sharding=sharding)
