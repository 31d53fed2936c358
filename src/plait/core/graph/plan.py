"""Plans: how to rebuild the graph of a graphdef, computed once and cached on the graphdef.

A rebuild collects all objects in one list, the *slots*, so that each object is identified by a number: first static
values, then objects built for other roots, the leaves, the (still empty) graph nodes, and last the containers, each
appended when it is created. Attributes are then stored in a few passes over flat tuples instead of node by node. A plan
contains only what its graphdef contains: classes, keys and static values, never a module or an array.

Graph nodes are created before everything else, and filled after their children (rule G26). The order in which plait's
own nodes and containers are filled is not observable, so their attributes are stored together in one pass, which runs
before any callback of a registered type, and at the end. (rules G26, G27)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ..objects.cells import run_through
from ..objects.nodes import GRAPH_REGISTRY, pytree_impl
from ..objects.pytree import Pytree
from .graphdef import GraphDef, LeafAttribute, NodeDef, NodeRef, StaticAttribute, VariableDef, kept_on

Slots = list[Any]
Pick = Callable[[Slots], tuple[Any, ...]]
_CONSTANT, _OUTER, _LEAF, _PLAIN, _OTHER, _CONTAINER = _SEGMENTS = range(6)
_Slot = tuple[int, int]  # a segment and a place in it: the lengths of the segments are known only at the end


class Plan:
    """How to rebuild the graph of one graphdef.

    Attributes:
        constants: static values, the first slots.
        outer: back-references to objects built for other roots, the next slots.
        leaf_defs: definitions of the leaves, the next slots.
        variables: positions of the variables among the leaves; ``None`` if all leaves are variables.
        plain: definitions of the nodes that ``empty_object`` creates without marks, the next slots.
        classes: their classes.
        others: definitions of the other graph nodes, the next slots.
        indices: those of all graph nodes and leaves with identity.
        indexed: selects the objects with those indices.
        steps: functions that fill the slots, in order.
        root: the slot of the result.
    """

    def __init__(self, graphdef: GraphDef) -> None:
        found = _Collected()
        root = found.collect(graphdef)
        self.constants, self.outer, self.leaf_defs, self.plain, self.others, _ = found.segments
        variables = [place for place, leaf in enumerate(self.leaf_defs) if type(leaf) is VariableDef]
        self.variables = None if len(variables) == len(self.leaf_defs) else variables
        self.classes = [definition.type for definition in self.plain]
        first = [0, *itertools.accumulate(map(len, found.segments))]

        def number_of(slot: _Slot) -> int:
            segment, place = slot
            return first[segment] + place

        self.steps = [
            functools.partial(step, *extra, *(picker([*map(number_of, slots)]) for slots in picked))
            for step, extra, picked in found.steps
        ]
        built = {index: slot for index, slot in found.by_index.items() if slot[0] != _OUTER}
        self.indices = [*built]
        self.indexed = picker([*map(number_of, built.values())])
        self.root = number_of(root)


def plan_of(graphdef: GraphDef) -> Plan:
    """The plan of a graphdef."""
    return kept_on(graphdef, "_plan", Plan)


class _Collected:
    """The result of a walk over a graphdef."""

    def __init__(self) -> None:
        self.segments: list[list[Any]] = [[] for _ in _SEGMENTS]
        self.steps: list[tuple[Callable[..., None], tuple[Any, ...], tuple[list[_Slot], ...]]] = []
        self.by_index: dict[Any, _Slot] = {}
        self.by_value: dict[int, _Slot] = {}
        self.fillable: dict[tuple[type, tuple[Any, ...]], bool] = {}
        # The attributes to store in the next common pass.
        self.owners: list[_Slot] = []
        self.names: list[str] = []
        self.values: list[_Slot] = []

    def collect(self, root: GraphDef) -> _Slot:
        """Walk the graphdef; returns the slot of the root."""
        if not isinstance(root, NodeDef):
            return self.reference(root) if isinstance(root, NodeRef) else self.leaf(root)
        stack = []
        frame: Any = (root, self.begin(root), iter(root.attributes), [], [])
        while True:
            definition, own, entries, keys, slots = frame
            for entry in entries:
                kind, value = type(entry), entry.value
                keys.append(entry.key)
                if kind is StaticAttribute:
                    slots.append(self.constant(value))
                elif type(value) is NodeRef:
                    slots.append(self.reference(value))
                elif kind is LeafAttribute:
                    slots.append(self.leaf(value))
                elif value.type is type(None):
                    slots.append(self.constant(None))
                else:
                    stack.append(frame)
                    frame = (value, self.begin(value), iter(value.attributes), [], [])
                    break
            else:
                own = self.finish(definition, own, keys, slots)
                if not stack:
                    self.flush()
                    return own
                frame = stack.pop()
                frame[4].append(own)

    def add(self, segment: int, item: Any) -> _Slot:
        """The slot for one more item of a segment."""
        self.segments[segment].append(item)
        return segment, len(self.segments[segment]) - 1

    def constant(self, value: Any) -> _Slot:
        if id(value) not in self.by_value:
            self.by_value[id(value)] = self.add(_CONSTANT, value)
        return self.by_value[id(value)]

    def reference(self, definition: Any) -> _Slot:
        if definition.index not in self.by_index:
            self.by_index[definition.index] = self.add(_OUTER, definition)
        return self.by_index[definition.index]

    def leaf(self, definition: Any) -> _Slot:
        slot = self.add(_LEAF, definition)
        if definition.index is not None:
            self.by_index[definition.index] = slot
        return slot

    def begin(self, definition: NodeDef) -> _Slot | None:
        """The slot of a graph node, known before its children are walked."""
        if definition.index is None:
            return None
        is_plain = definition.metadata is None and _is_plain(definition.type)
        slot = self.by_index[definition.index] = self.add(_PLAIN if is_plain else _OTHER, definition)
        return slot

    def finish(self, definition: NodeDef, own: _Slot | None, keys: list[Any], slots: list[_Slot]) -> _Slot:
        """Record how to complete a node, after everything below it; returns its slot."""
        kind = definition.type
        if own is None:
            make: Any = kind
            if kind is dict:
                make = functools.partial(_dict_of, keys)
            elif kind is not list and kind is not tuple:  # it may inspect its contents
                self.flush()
                unflatten = pytree_impl(kind).unflatten
                make = functools.partial(_unflattened, unflatten, definition.metadata, keys)
            self.steps.append((_contain, (make,), (slots,)))
            return self.add(_CONTAINER, definition)
        if self.can_fill(kind, tuple(keys)):
            self.owners += [own] * len(keys)
            self.names += keys
            self.values += slots
        else:
            self.flush()
            self.steps.append((_init, (GRAPH_REGISTRY[kind].init, keys), ([own, *slots],)))
        return own

    def can_fill(self, kind: type, keys: tuple[Any, ...]) -> bool:
        """Whether a node is filled by storing its children in its ``__dict__``."""
        found = self.fillable.get((kind, keys))
        if found is None:
            is_usual = GRAPH_REGISTRY[kind].init is Pytree._pytree__graph_init
            found = self.fillable[kind, keys] = is_usual and all(_is_ordinary(kind, key) for key in keys)
        return found

    def flush(self) -> None:
        """Store all pending attributes in one pass."""
        if self.names:
            self.steps.append((_store, (self.names,), (self.owners, self.values)))
            self.owners, self.names, self.values = [], [], []


def _is_plain(kind: type) -> bool:
    """Whether ``empty_object`` creates the empty nodes of a class."""
    return (
        issubclass(kind, Pytree)
        and kind._pytree__graph_create_empty.__func__ is Pytree._pytree__graph_create_empty.__func__
    )


def _is_ordinary(kind: type, name: Any) -> bool:
    """Whether a class stores an attribute of this name in ``__dict__``: it has no property of that name."""
    if type(name) is not str:
        return False
    for base in kind.__mro__:
        if name in base.__dict__:
            descriptor = type(base.__dict__[name])
            return not (hasattr(descriptor, "__set__") or hasattr(descriptor, "__delete__"))
    return True


# Steps ----------------------------------------------------------------------------------------------------------------

_set_attribute: Any = object.__setattr__


# Twice as fast as ``node.__dict__.update``, which first creates the dict of an object that has none yet.
def _store(names: list[str], owners: Pick, values: Pick, slots: Slots) -> None:
    run_through(map(_set_attribute, owners(slots), names, values(slots)))


def _init(init: Callable[..., None], keys: list[Any], pick: Pick, slots: Slots) -> None:
    node, *children = pick(slots)
    init(node, [*zip(keys, children, strict=True)])


def _contain(make: Callable[[tuple[Any, ...]], Any], pick: Pick, slots: Slots) -> None:
    slots.append(make(pick(slots)))


def _unflattened(unflatten: Callable[..., Any], metadata: Any, keys: list[Any], children: tuple[Any, ...]) -> Any:
    return unflatten([*zip(keys, children, strict=True)], metadata)


def _dict_of(keys: list[Any], children: tuple[Any, ...]) -> dict[Any, Any]:
    """As registered in ``nodes.py``, but without pairs."""
    return dict(zip(keys, children, strict=True))


def picker(places: list[int]) -> Pick:
    """A function that returns the items at these positions of a list, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return functools.partial(_few, tuple(places))


def _few(places: tuple[int, ...], items: list[Any]) -> tuple[Any, ...]:
    return tuple([items[place] for place in places])
