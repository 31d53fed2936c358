"""The JSON description of one outline, or of two side by side: all the data of the page.

::

    {"sides": [{"name", "origin", "facts", "hasObjects"}],
     "layouts": [{"mesh": [[axis, size]], "spec": [[axis]], "devices": [id], "tiles": [tile of each device], "grid"}],
     "nodes": [{"parent", "step", "sides": [place or null], "changes": [word], "difference"}]}

A node is a path, with what each side has there; owners come before what they own. Empty fields are omitted. Numbers are
finite, since JSON has no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...util.dtypes import is_number_dtype
from ...util.paths import Path
from .outline import LEAF, LINK, Call, Entry, Layout, Outline, step_of
from .statistics import Statistics, difference, histogram, statistics

_EXACT = 2**53  # JavaScript's numbers do not represent all larger integers


def description(outlines: Sequence[Outline]) -> dict[str, Any]:
    """The description of one outline, or of two."""
    paths = list(dict.fromkeys(entry.path for outline in outlines for entry in outline.entries))
    index = {path: place for place, path in enumerate(paths)}
    known = [{entry.path: entry for entry in outline.entries} for outline in outlines]
    layouts: dict[Layout, int] = {}  # places refer to layouts by number
    nodes = []
    for path in paths:
        entries = [side.get(path) for side in known]
        node: dict[str, Any] = {"step": step_of(path)}
        if path:
            node["parent"] = index[path[:-1]]
        arrays = [_read(entry) for entry in entries]
        numbers = [_statistics(entry, array) for entry, array in zip(entries, arrays, strict=True)]
        ends = _ends(numbers)
        node["sides"] = [
            None if entry is None else _side(entry, array, found, ends, index, layouts)
            for entry, array, found in zip(entries, arrays, numbers, strict=True)
        ]
        if len(outlines) == 2:
            node.update(_compared(outlines, entries, arrays))
        nodes.append(node)
    sides = [
        {"name": each.name, "origin": each.origin, "facts": dict(each.facts), "hasObjects": each.has_objects}
        for each in outlines
    ]
    return {"sides": sides, "layouts": [_layout(each) for each in layouts], "nodes": nodes}


def _read(entry: Entry | None) -> np.ndarray | None:
    if entry is None or entry.read is None:
        return None
    array = entry.read()
    return array if is_number_dtype(array.dtype) else None


def _statistics(entry: Entry | None, array: np.ndarray | None) -> Statistics | None:
    return None if entry is None or entry.is_key or array is None else statistics(array)


def _ends(found: Iterable[Statistics | None]) -> tuple[float, float] | None:
    """The range of the histograms of a node, the same for both sides."""
    known = [each for each in found if each is not None]
    lows = [each.low for each in known if each.low is not None]
    highs = [each.high for each in known if each.high is not None]
    return (min(lows), max(highs)) if lows and highs else None


def _side(
    entry: Entry,
    array: np.ndarray | None,
    found: Statistics | None,
    ends: tuple[float, float] | None,
    index: Mapping[Path, int],
    layouts: dict[Layout, int],
) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": entry.role, "type": entry.type, "why": entry.why, "dtype": entry.dtype}
    if entry.role == LEAF:
        shown |= {"shape": list(entry.shape), "bytes": entry.bytes, "isKey": entry.is_key}
        sizes = [size if isinstance(size, int) else 1 for size in entry.shape]
        shown["count"] = math.prod(sizes) if entry.bytes else 0
    if found is not None and array is not None:
        shown["statistics"] = {name: _number(value) for name, value in vars(found).items()}
        if ends is not None and array.size > 1:
            shown["histogram"] = {"low": ends[0], "high": ends[1], "counts": histogram(array, *ends)}
    if entry.role == LINK and entry.target is not None:
        shown["to"] = index[entry.target]
        shown["isCycle"] = entry.target == entry.path[: len(entry.target)]
    if entry.layout is not None:
        shown["layout"] = layouts.setdefault(entry.layout, len(layouts))
    shown["attributes"] = [list(pair) for pair in entry.attributes.items()]
    shown["calls"] = [_call(call) for call in entry.calls]
    shown["costs"] = {name: _number(value) for name, value in entry.costs.items()}
    return {name: value for name, value in shown.items() if _says_something(value) or name == "shape"}


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _number(value: float | None) -> float | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value


def _call(call: Call) -> dict[str, Any]:
    shown = {"method": call.method, "inputs": call.inputs, "outputs": call.outputs, "times": call.times}
    return {**shown, "inside": call.inside} if call.inside else shown


def _layout(layout: Layout) -> dict[str, Any]:
    grid, tiles = tiles_of(layout)
    shown = {"mesh": [list(axis) for axis in layout.mesh], "spec": [list(axes) for axes in layout.spec]}
    return {**shown, "devices": list(layout.devices), "grid": grid, "tiles": tiles}


def tiles_of(layout: Layout) -> tuple[list[int], list[int]]:
    """The number of parts of each dimension, and the tile of each device, in the order of the mesh."""
    sizes = dict(layout.mesh)
    grid = [math.prod(sizes[axis] for axis in axes) for axes in layout.spec]
    places = np.indices(tuple(sizes.values())).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
    coordinate = dict(zip(sizes, places, strict=True))
    tiles = np.zeros(places.shape[1], np.int64)
    for parts, axes in zip(grid, layout.spec, strict=True):
        part = np.zeros_like(tiles)
        for axis in axes:
            part = part * sizes[axis] + coordinate[axis]
        tiles = tiles * parts + part
    return grid, tiles.tolist()


# Two sides ------------------------------------------------------------------------------------------------------------


def _compared(
    outlines: Sequence[Outline], entries: Sequence[Entry | None], arrays: Sequence[np.ndarray | None]
) -> dict[str, Any]:
    """What differs at a path: ``changes`` in words, and the ``difference`` of the values."""
    first, second = entries
    with_objects = all(outline.has_objects for outline in outlines)
    if first is None or second is None:
        there = first or second
        counts = with_objects or (there is not None and there.role == LEAF)
        return {"changes": ["added" if first is None else "removed"]} if counts else {}
    if not with_objects and LINK in (first.role, second.role):
        return {}
    changes = [word for word, differs in _differences(first, second, with_objects) if differs]
    shown: dict[str, Any] = {}
    a, b = arrays
    if a is not None and b is not None and a.shape == b.shape:
        if first.is_key or second.is_key:
            changes += ["values"] if not np.array_equal(a, b) else []
        else:
            found = difference(a, b)
            changes += ["values"] if found.changed else []
            shown["difference"] = {name: _number(value) for name, value in vars(found).items()}
    return {**shown, **({"changes": changes} if changes else {})}


def _differences(first: Entry, second: Entry, with_objects: bool) -> Iterable[tuple[str, bool]]:
    yield "kind", first.role != second.role
    yield "type", bool(first.type and second.type) and first.type != second.type
    yield "link", first.target != second.target
    if first.role == second.role == LEAF:
        yield "shape", first.shape != second.shape
        yield "dtype", first.dtype != second.dtype
        yield "value", first.why != "" and first.attributes.get("value") != second.attributes.get("value")
        yield "sharding", bool(first.layout and second.layout) and first.layout != second.layout
    yield "attributes", with_objects and dict(first.attributes) != dict(second.attributes)
