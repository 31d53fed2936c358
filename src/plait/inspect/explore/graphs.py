"""The outline of a live object graph: modules, variables, states, or any pytree of them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...core.nodes.nodes import Kind, Place, children_if_any, jax_to_nnx_path, visit
from ...core.variables.variables import Variable
from ...partitioning.mesh import axes_of, get_global_mesh
from ...util.jax_versions import Tracer, is_mutable_array
from ...util.paths import Path, format_path
from ..sharding import item_size, spec_and_mesh
from .outline import LEAF, LINK, NODE, Call, Entry, Layout, Outline

_LONGEST = 200  # characters of an attribute's text
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SHOWN_APART = {"out_sharding", "eager_sharding", "hijax", "ref", "mesh"}


def outline_of_graph(
    node: Any,
    name: str,
    calls: Mapping[Path, list[Call]] | None = None,
    costs: Mapping[Path, Mapping[str, float]] | None = None,
) -> Outline:
    """The outline of an object graph; a shared object has one entry, and links at its other paths.

    Args:
        node: any value.
        calls: the calls of methods, by the path of the module.
        costs: the costs, by the path of the module.
    """
    entries: list[Entry] = []
    nodes: dict[Place, Entry] = {}
    for place in visit(node, children=children_if_any):
        owner = nodes.get(place.owner) if place.owner is not None else None
        if owner is not None and _is_attribute(place):
            owner.attributes = {**owner.attributes, _name(place.key): describe(place.value)}
            place.enter = False
            continue
        path = place.path
        if place.first is not None:
            entries.append(Entry(path, LINK, type(place.value).__name__, target=place.first.path))
        elif place.kind is Kind.GRAPH or place.kind is Kind.PYTREE:
            entry = Entry(path, NODE, type(place.value).__name__)
            entry.calls, entry.costs = (calls or {}).get(path, ()), (costs or {}).get(path, {})
            nodes[place] = entry
            entries.append(entry)
        else:
            entries.extend(_leaves(path, place.value))
    return Outline(name, "model", entries, has_objects=True)


def _is_attribute(place: Place) -> bool:
    """Whether a place gets no row: a static value, or a container with only static values."""
    if place.kind is Kind.STATIC:
        return True
    if place.kind is not Kind.PYTREE or place.first is not None:
        return False
    return all(each.kind in (Kind.STATIC, Kind.PYTREE) for each in visit(place.value, children=children_if_any))


def _name(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def describe(value: Any) -> str:
    """A static value as short text without addresses, so that two runs of a program agree."""
    try:
        if isinstance(value, functools.partial):
            inside = [describe(value.func), *map(describe, value.args)]
            return f"partial({', '.join([*inside, *(f'{k}={describe(v)}' for k, v in value.keywords.items())])})"
        if callable(value) and isinstance(getattr(value, "__name__", None), str):
            name = getattr(value, "__qualname__", value.__name__).replace("<locals>.", "")
            return name if isinstance(value, type) else f"{name}()"
        text = _ADDRESS.sub("", repr(value))
    except Exception:  # the repr of a user's class
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _leaves(path: Path, value: Any) -> Iterator[Entry]:
    """The entry of a variable or array; a variable that holds a container is a node above its arrays."""
    kind, metadata, names, raw = type(value).__name__, {}, None, value
    if isinstance(value, Variable):
        known = value.get_metadata()
        names, raw = known.get("out_sharding"), value.get_raw_value()
        metadata = {key: describe(each) for key, each in known.items() if key not in _SHOWN_APART}
        if names is not None:
            metadata["axis names"] = describe(names)
    raw = raw[...] if is_mutable_array(raw) else raw
    inner = jax.tree_util.tree_flatten_with_path(raw)[0]
    if len(inner) == 1 and not inner[0][0]:
        yield _leaf(path, kind if isinstance(value, Variable) else "", value, raw, metadata)
        return
    yield Entry(path, NODE, kind, attributes=metadata)
    made: set[Path] = {path}
    for keys, array in inner:
        place = (*path, *jax_to_nnx_path(keys))
        for length in range(len(path) + 1, len(place)):
            if place[:length] not in made:
                made.add(place[:length])
                yield Entry(place[:length], NODE)
        yield _leaf(place, "", array, array, {})


def _leaf(path: Path, kind: str, leaf: Any, array: Any, metadata: Mapping[str, str]) -> Entry:
    entry = Entry(path, LEAF, kind, attributes=metadata)
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        entry.dtype, entry.why = type(array).__name__, "not an array"
        if isinstance(array, (bool, int, float, complex)):
            entry.read, entry.why = (lambda: np.asarray(array)), ""
        else:
            entry.attributes = {**metadata, "value": describe(array)}
        return entry
    entry.shape, entry.dtype = tuple(array.shape), str(array.dtype)
    entry.bytes = math.prod(entry.shape) * item_size(array.dtype)
    entry.layout = layout_of(leaf, array, format_path(path))
    entry.is_key = bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))
    entry.read, entry.why = reader_of(array)
    return entry


def reader_of(array: Any) -> tuple[Callable[[], np.ndarray] | None, str]:
    """A function that reads an array's values; ``None`` and the reason if they are not available."""
    if isinstance(array, Tracer):
        return None, "traced, so there are no values"
    if isinstance(array, jax.ShapeDtypeStruct) or not hasattr(array, "__array__"):
        return None, "a shape without values"
    if isinstance(array, jax.Array):
        if array.is_deleted():
            return None, "its buffer was donated or deleted"
        if not array.is_fully_addressable:
            return None, "parts of it are on other processes"
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return (lambda: np.asarray(jax.random.key_data(array))), ""
    return (lambda: np.asarray(array)), ""


def layout_of(leaf: Any, array: Any, place: str) -> Layout | None:
    """The layout of an array on a mesh, from its sharding, or else from its axis names on the current mesh."""
    sharding = getattr(array, "sharding", None)
    spec, sizes = spec_and_mesh(leaf, array, get_global_mesh(), place)
    if math.prod(sizes.values()) < 2:
        return None
    devices: tuple[int, ...] = ()
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh):
        devices = tuple(device.id for device in sharding.mesh.devices.flat)
    return Layout(tuple((str(k), n) for k, n in sizes.items()), _by_dimension(spec, len(array.shape)), devices)


def _by_dimension(spec: PartitionSpec, dimensions: int) -> tuple[tuple[str, ...], ...]:
    parts = [tuple(map(str, axes_of(entry))) for entry in spec]
    return (*parts, *((),) * (dimensions - len(parts)))
