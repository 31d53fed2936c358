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
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ..objects.cells import run_through
from ..objects.nodes import GRAPH_REGISTRY, get_node_impl_for_type
from ..objects.pytree import Pytree
from .graphdef import GraphDef, LeafAttribute, NodeDef, NodeRef, StaticAttribute, VariableDef, kept_on

Slots = list[Any]
Pick = Callable[[Slots], tuple[Any, ...]]
_CONSTANT, _OUTER, _LEAF, _PLAIN, _OTHER, _CONTAINER = _SEGMENTS = range(6)
_STRIDE = len(_SEGMENTS)


class Plan:
    """How to rebuild the graph of one graphdef.

    Attributes:
        constants: static values, the first slots.
        outer: back-references to objects built for other roots, the next slots.
        leaves: definitions of the leaves, the next slots.
        variables: positions of the variables among the leaves; ``None`` if all leaves are variables.
        plain: definitions of the nodes that ``empty_object`` creates without marks, the next slots.
        classes: their classes.
        others: definitions of the other graph nodes, the next slots.
        indices: those of all graph nodes, then of all leaves with identity.
        indexed: selects the objects with those indices.
        steps: functions that fill the slots, in order.
        root: the slot of the result.
    """

    def __init__(self, graphdef: GraphDef) -> None:
        found = _Collected()
        root = found.collect(graphdef)
        self.constants = found.constants
        self.outer = found.outer
        self.leaves = found.leaves
        variables = [place for place, leaf in enumerate(found.leaves) if type(leaf) is VariableDef]
        self.variables = None if len(variables) == len(found.leaves) else variables
        self.plain = found.plain
        self.classes = [definition.type for definition in found.plain]
        self.others = found.others
        nodes = [*found.plain, *found.others]
        # During collection, slots are numbered by segment, since the lengths of the segments are known only now.
        sizes = [len(found.constants), len(found.outer), len(found.leaves), len(found.plain), len(found.others)]
        first = [sum(sizes[:segment]) for segment in _SEGMENTS]

        def slot(number: int) -> int:
            return first[number % _STRIDE] + number // _STRIDE

        self.steps = [
            functools.partial(step, *extra, *(picker([*map(slot, numbers)]) for numbers in picked))
            for step, extra, picked in found.steps
        ]
        identities = [(leaf.index, first[_LEAF] + place) for place, leaf in enumerate(found.leaves)]
        indexed = [(node.index, first[_PLAIN] + place) for place, node in enumerate(nodes)]
        indexed += [pair for pair in identities if pair[0] is not None]
        self.indices = [index for index, _ in indexed]
        self.indexed = picker([place for _, place in indexed])
        self.root = slot(root)


def plan_of(graphdef: GraphDef) -> Plan:
    """The plan of a graphdef."""
    return kept_on(graphdef, "_plan", Plan)


class _Collected:
    """The result of a walk over a graphdef. A slot is encoded as (number in its segment) * _STRIDE + segment."""

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self.outer: list[NodeRef] = []
        self.leaves: list[Any] = []
        self.plain: list[NodeDef] = []
        self.others: list[NodeDef] = []
        self.containers = 0
        self.steps: list[tuple[Callable[..., None], tuple[Any, ...], tuple[list[int], ...]]] = []
        self.by_index: dict[int, int] = {}
        self.by_value: dict[int, int] = {}
        self.fillable: dict[tuple[type, tuple[Any, ...]], bool] = {}
        # The attributes to store in the next common pass.
        self.owners: list[int] = []
        self.names: list[str] = []
        self.values: list[int] = []

    def collect(self, root: GraphDef) -> int:
        """Walk the graphdef; returns the slot of the root."""
        if not isinstance(root, NodeDef):
            return self.reference(root) if isinstance(root, NodeRef) else self.leaf(root)
        stack = []
        definition: Any = root
        frame: Any = (root, self.begin(root), iter(root.attributes), [], [])
        while True:
            definition, own, entries, keys, numbers = frame
            for entry in entries:
                kind, value = type(entry), entry.value
                keys.append(entry.key)
                if kind is StaticAttribute:
                    numbers.append(self.constant(value))
                elif type(value) is NodeRef:
                    numbers.append(self.reference(value))
                elif kind is LeafAttribute:
                    numbers.append(self.leaf(value))
                elif value.type is type(None):
                    numbers.append(self.constant(None))
                else:
                    stack.append(frame)
                    frame = (value, self.begin(value), iter(value.attributes), [], [])
                    break
            else:
                own = self.finish(definition, own, keys, numbers)
                if not stack:
                    self.flush()
                    return own
                frame = stack.pop()
                frame[4].append(own)

    def constant(self, value: Any) -> int:
        number = self.by_value.get(id(value))
        if number is None:
            number = self.by_value[id(value)] = len(self.constants) * _STRIDE + _CONSTANT
            self.constants.append(value)
        return number

    def reference(self, definition: Any) -> int:
        number = self.by_index.get(definition.index)
        if number is None:
            number = self.by_index[definition.index] = len(self.outer) * _STRIDE + _OUTER
            self.outer.append(definition)
        return number

    def leaf(self, definition: Any) -> int:
        number = len(self.leaves) * _STRIDE + _LEAF
        self.leaves.append(definition)
        if definition.index is not None:
            self.by_index[definition.index] = number
        return number

    def begin(self, definition: NodeDef) -> int | None:
        """The slot of a graph node, known before its children are walked."""
        if definition.index is None:
            return None
        if definition.metadata is None and _is_plain(definition.type):
            number = len(self.plain) * _STRIDE + _PLAIN
            self.plain.append(definition)
        else:
            number = len(self.others) * _STRIDE + _OTHER
            self.others.append(definition)
        self.by_index[definition.index] = number
        return number

    def finish(self, definition: NodeDef, own: int | None, keys: list[Any], numbers: list[int]) -> int:
        """Record how to complete a node, after everything below it; returns its slot."""
        kind = definition.type
        if own is None:
            make = _MAKERS.get(kind)
            if make is None:
                self.flush()
                unflatten = get_node_impl_for_type(kind).unflatten  # type: ignore[union-attr]
                extra: tuple[Any, ...] = (functools.partial(_unflattened, unflatten, definition.metadata, keys),)
            else:
                extra = (functools.partial(make, keys) if kind is dict else make,)
            self.steps.append((_contain, extra, (numbers,)))
            self.containers += 1
            return (self.containers - 1) * _STRIDE + _CONTAINER
        if self.can_fill(kind, tuple(keys)):
            self.owners += [own] * len(keys)
            self.names += keys
            self.values += numbers
        else:
            self.flush()
            self.steps.append((_init, (GRAPH_REGISTRY[kind].init, keys), ([own, *numbers],)))
        return own

    def can_fill(self, kind: type, keys: tuple[Any, ...]) -> bool:
        """Whether a node is filled by storing its children in its ``__dict__``."""
        found = self.fillable.get((kind, keys))
        if found is None:
            is_usual = GRAPH_REGISTRY[kind].init is Pytree._graph_init
            found = self.fillable[kind, keys] = is_usual and all(_is_ordinary(kind, key) for key in keys)
        return found

    def flush(self) -> None:
        """Store all pending attributes in one pass."""
        if self.names:
            self.steps.append((_store, (self.names,), (self.owners, self.values)))
            self.owners, self.names, self.values = [], [], []


def _is_plain(kind: type) -> bool:
    """Whether ``empty_object`` creates the empty nodes of a class."""
    return issubclass(kind, Pytree) and kind._graph_create_empty.__func__ is Pytree._graph_create_empty.__func__


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
    return dict(zip(keys, children, strict=True))


# Containers that do not inspect their contents: as registered in ``nodes.py``, but without pairs.
_MAKERS: dict[type, Any] = {list: list, tuple: tuple, dict: _dict_of}


def picker(places: list[int]) -> Pick:
    """A function that returns the items at these positions of a list, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return functools.partial(_few, tuple(places))


def _few(places: tuple[int, ...], items: list[Any]) -> tuple[Any, ...]:
    return tuple([items[place] for place in places])
