"""What a page shows of one model or file: its entries in order, owners first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...util.paths import Path, format_path

NODE, LEAF, LINK = "node", "leaf", "link"
DEEPEST = 100  # keys in a path of a file; a longer name, as no model has, is one key


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a module's method: dtypes and shapes of its arrays, as text; ``times`` counts equal ones.

    ``output_bytes`` is the size of the arrays that it returns, if known. ``inside`` names the transform of which it is
    one branch or iteration, which may run any number of times.
    """

    method: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    times: int = 1
    output_bytes: int = 0
    inside: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of an array on a mesh.

    Attributes:
        mesh: the sizes of the mesh axes, by name.
        spec: for each dimension of the array the mesh axes that shard it.
        devices: ids of the devices, in the order of the mesh; empty for a mesh without devices.
    """

    mesh: tuple[tuple[str, int], ...]
    spec: tuple[tuple[str, ...], ...]
    devices: tuple[int, ...] = ()


@dataclasses.dataclass
class Entry:
    """One place.

    Attributes:
        path: from the root.
        role: a node has entries below it; a leaf is one array or number; a link refers to an object that an earlier
            entry shows.
        type: the class of the module, container or variable; empty if it is not known.
        dtype, shape, bytes: those of a leaf's array.
        read: reads a leaf's values; ``None`` if there are none.
        why: why there are no values.
        is_key: whether the values are those of random keys, which have no statistics.
        attributes: static attributes of a node, metadata of a variable.
        target: the path that a link refers to.
        layout: the layout of a leaf's array on a mesh.
        calls: the calls of a module's methods.
        costs: the costs of a module, without those below it, by name.
    """

    path: Path
    role: str
    type: str = ""
    dtype: str = ""
    shape: tuple[Any, ...] = ()
    bytes: int = 0
    read: Callable[[], np.ndarray] | None = None
    why: str = ""
    is_key: bool = False
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    target: Path | None = None
    layout: Layout | None = None
    calls: Sequence[Call] = ()
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outline:
    """One model or file.

    Attributes:
        name: its name on the page.
        origin: what it is: ``"model"``, ``"checkpoint"``, …
        entries: the entries in order, the root first.
        facts: further information, such as the step of a checkpoint.
        has_objects: whether modules, links and attributes are known, rather than only arrays by path.
    """

    name: str
    origin: str
    entries: list[Entry]
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_objects: bool = False


def outline_of_leaves(name: str, origin: str, leaves: Mapping[Path, Entry], facts: Mapping[str, str]) -> Outline:
    """An outline from leaves alone: a node is created for every prefix of their paths."""
    entries: dict[Path, Entry] = {}
    for path, leaf in leaves.items():
        if len(path) > DEEPEST:
            path = leaf.path = (format_path(path),)
        for length in range(len(path)):
            entries.setdefault(path[:length], Entry(path[:length], NODE))
        entries[path] = leaf
    return Outline(name, origin, list(entries.values()) or [Entry((), NODE)], facts)


def step_of(path: Path) -> str:
    """The last key of a path, as it is written after the others: ``.kernel`` or ``[3]``."""
    step = format_path(path[-1:])
    return step if not step or step.startswith("[") else f".{step}"


def put_together(first: Outline, second: Outline) -> None:
    """If the two have no array path in common and one is a file, move one to the path of its arrays in the other.

    The checkpoint of a training run has its model at ``model``; an export of that model has it at the root. The path is
    the one below which most arrays have the same names and shapes; unless more than half do, nothing is moved.
    """
    leaves = [{entry.path: entry.shape for entry in each.entries if entry.role == LEAF} for each in (first, second)]
    if leaves[0].keys() & leaves[1].keys() or (first.has_objects and second.has_objects):
        return
    for part, own, others in ((second, leaves[1], leaves[0]), (first, *leaves)):
        place = _place_of(own, others)
        if place is not None:
            _move_below(part, place)
            return


def _place_of(own: Mapping[Path, Any], others: Mapping[Path, Any]) -> Path | None:
    found: dict[Path, int] = {}
    for path, shape in others.items():
        for length in range(1, len(path)):
            if own.get(path[length:]) == shape:
                found[path[:length]] = found.get(path[:length], 0) + 1
    # The moments of an optimizer have the names and shapes of the model too, at longer paths.
    place = min(found, key=lambda place: (-found[place], len(place)), default=None)
    return place if place is not None and 2 * found[place] > len(own) else None


def _move_below(outline: Outline, place: Path) -> None:
    for entry in outline.entries:
        entry.path = (*place, *entry.path)
        entry.target = None if entry.target is None else (*place, *entry.target)
    outline.entries[:0] = [Entry(place[:length], NODE) for length in range(len(place))]
    outline.facts = {**outline.facts, "shown at": format_path(place)}
