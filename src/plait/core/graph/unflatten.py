"""The second of the two walks: from a graphdef and its leaves back to an object graph.

It follows the plan of the graphdef: graph nodes are created empty, entered in the index table, and filled after their
children, so a child may point back to an ancestor. Pytree nodes are built after their children. With a cache (index →
existing object), graph nodes are emptied and refilled in place, and variables are written in place. This is how a
transform changes the caller's own objects; a journal notes what they held. (rules G25 to G30)

**A plan** says how to rebuild the graph of a graphdef; it is computed once and cached on the graphdef. A rebuild
collects all objects in one list, the *slots*, so that each object is identified by a number: first static values, then
objects built for other roots, the leaves, the (still empty) graph nodes, and last the containers, each appended when it
is created. Attributes are then stored in a few passes over flat tuples instead of node by node. A plan contains only
what its graphdef contains: classes, keys and static values, never a module or an array.

Graph nodes are created before everything else, and filled after their children (rule G26). The order in which plait's
own nodes and containers are filled is not observable, so their attributes are stored together in one pass, which runs
before any callback of a registered type, and at the end. (rules G26, G27)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ...errors import GraphError, RegistryError
from ...typing import Node, Value
from ...util.jax_versions import is_mutable_array, trace_state
from ...util.sentinels import Sentinel
from ...util.words import describe_type, with_article
from ..nodes.containers import List
from ..nodes.journal import Journal
from ..nodes.nodes import GRAPH_REGISTRY, pytree_impl
from ..nodes.pytree import Pytree, empty_objects, own_info
from ..variables.cells import dict_of, has_ref, metadata_key, run_through
from ..variables.variables import Variable, cell_of, copied_cells, make_variable, make_variables
from .graphdef import GraphDef, LeafAttribute, LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef, cached_on
from .walks import Contents, read_contents

Slots = list[Value]
Pick = Callable[[Slots], tuple[Value, ...]]
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
        first_container: the slot of the first container.
        root: the slot of the result.
        is_comparable: whether ``walks.read_contents`` the graph's objects is all that a walk reads.
    """

    def __init__(self, graphdef: GraphDef) -> None:
        found = _Collected()
        root = found.collect(graphdef)
        self.constants, self.outer, self.leaf_defs, self.plain, self.others, _ = found.segments
        variables = [place for place, leaf in enumerate(self.leaf_defs) if type(leaf) is VariableDef]
        self.variables = None if len(variables) == len(self.leaf_defs) else variables
        self.classes = [definition.type for definition in self.plain]
        first = [0, *itertools.accumulate(map(len, found.segments))]
        self.first_container = first[_CONTAINER]

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
        self.is_comparable = found.is_comparable and all(map(_is_comparable, found.segments[_CONTAINER]))
        self.is_comparable &= all(map(_is_comparable, (*self.plain, *self.others)))


def plan_of(graphdef: GraphDef) -> Plan:
    """The plan of a graphdef."""
    return cached_on(graphdef, "_plan", Plan)


class _Collected:
    """The result of a walk over a graphdef."""

    def __init__(self) -> None:
        self.segments: list[list[Any]] = [[] for _ in _SEGMENTS]
        self.steps: list[tuple[Callable[..., None], tuple[Any, ...], tuple[list[_Slot], ...]]] = []
        self.by_index: dict[int | None, _Slot] = {}
        self.by_value: dict[int, _Slot] = {}
        self.fillable: dict[tuple[type, tuple[Hashable, ...]], bool] = {}
        self.is_comparable = True  # as to static values
        # The attributes to store in the next common pass.
        self.owners: list[_Slot] = []
        self.names: list[Hashable] = []
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
                    self.is_comparable &= entry._key is not None and not entry.has_closures
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

    def add(self, segment: int, item: object) -> _Slot:
        """The slot for one more item of a segment."""
        self.segments[segment].append(item)
        return segment, len(self.segments[segment]) - 1

    def constant(self, value: object) -> _Slot:
        if id(value) not in self.by_value:
            self.by_value[id(value)] = self.add(_CONSTANT, value)
        return self.by_value[id(value)]

    def reference(self, definition: NodeRef) -> _Slot:
        if definition.index not in self.by_index:
            self.by_index[definition.index] = self.add(_OUTER, definition)
        return self.by_index[definition.index]

    def leaf(self, definition: GraphDef) -> _Slot:
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

    def finish(self, definition: NodeDef, own: _Slot | None, keys: list[Hashable], slots: list[_Slot]) -> _Slot:
        """Record how to complete a node, after everything below it; returns its slot."""
        kind = definition.type
        if own is None:
            make: Callable[..., Node] = kind
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

    def can_fill(self, kind: type, keys: tuple[Hashable, ...]) -> bool:
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


def _is_comparable(definition: NodeDef) -> bool:
    kind = definition.type
    if issubclass(kind, Pytree):
        return kind._pytree__graph_flatten in (Pytree._pytree__graph_flatten, List._pytree__graph_flatten)
    return kind in (list, dict, tuple)


def _is_plain(kind: type) -> bool:
    """Whether ``empty_object`` creates the empty nodes of a class."""
    return (
        issubclass(kind, Pytree)
        and kind._pytree__graph_create_empty.__func__ is Pytree._pytree__graph_create_empty.__func__
    )


def _is_ordinary(kind: type, name: object) -> bool:
    """Whether a class stores an attribute of this name in ``__dict__``: it has no property of that name."""
    if type(name) is not str:
        return False
    for base in kind.__mro__:
        if name in base.__dict__:
            descriptor = type(base.__dict__[name])
            return not (hasattr(descriptor, "__set__") or hasattr(descriptor, "__delete__"))
    return True


# Steps ----------------------------------------------------------------------------------------------------------------

_set_attribute: Callable[[object, str, object], None] = object.__setattr__


# Twice as fast as ``node.__dict__.update``, which first creates the dict of an object that has none yet.
def _store(names: list[str], owners: Pick, values: Pick, slots: Slots) -> None:
    run_through(map(_set_attribute, owners(slots), names, values(slots)))


def _init(init: Callable[..., None], keys: list[Hashable], pick: Pick, slots: Slots) -> None:
    node, *children = pick(slots)
    init(node, [*zip(keys, children, strict=True)])


def _contain(make: Callable[[tuple[Value, ...]], Node], pick: Pick, slots: Slots) -> None:
    slots.append(make(pick(slots)))


def _unflattened(
    unflatten: Callable[..., Node], metadata: object, keys: list[Hashable], children: tuple[Value, ...]
) -> Node:
    return unflatten([*zip(keys, children, strict=True)], metadata)


def _dict_of(keys: list[Hashable], children: tuple[Value, ...]) -> dict[Hashable, Value]:
    """The ``unflatten`` of dicts in ``nodes.py``, but without pairs."""
    return dict(zip(keys, children, strict=True))


def picker(places: list[int]) -> Pick:
    """A function that returns the items at these positions of a list, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return functools.partial(_few, tuple(places))


def _few(places: tuple[int, ...], items: list[Value]) -> tuple[Value, ...]:
    return tuple([items[place] for place in places])


# The leaf of a variable in the cache that keeps its value.
UNTOUCHED: Sentinel = Sentinel(__name__, "UNTOUCHED", "<untouched>")

MakeVariables = Callable[[Sequence[VariableDef], Sequence[Value]], Sequence[Value]]


class Builder:
    """Builds graphs that share one index table.

    Args:
        index_ref: index → object, filled while building; ``None`` if the graph shares nothing with other roots.
        cache: index → existing object to reuse.
        make_variables: ``(VariableDefs, leaves) -> objects``, for variables that are not in the cache.
        journal: notes what the objects in the cache held; needed with a cache, and open while ``build`` runs.

    Attributes:
        contents: what a walk reads of the objects that were built, if it is asked for; ``None`` if it cannot be told.
    """

    def __init__(
        self,
        index_ref: dict[int, Node] | None = None,
        cache: Mapping[int, Node] | None = None,
        make_variables: MakeVariables | None = None,
        journal: Journal | None = None,
        *,
        with_contents: bool = False,
    ) -> None:
        self.contents: list[Contents] | None = [] if with_contents else None
        self.index_ref: Any = index_ref  # a dict or None
        self.cache: Mapping[Any, Node] = cache or {}
        self.make_variables = make_variables or own_variables
        self.journal: Any = journal

    def build(self, graphdef: GraphDef, leaves: Sequence[Value]) -> Node:
        """The graph of ``graphdef`` around ``leaves``, one for each of its leaf definitions in walk order.

        Raises:
            GraphError: the number of leaves or the type of a cached object is wrong; or a view would change.
            TraceContextError: a cached object belongs to a different trace and would change.
        """
        plan = plan_of(graphdef)
        if len(plan.leaf_defs) != len(leaves):
            raise GraphError(
                "Incorrect number of leaves for the graphdef",
                found=f"number of leaves: {len(leaves)}",
                expected=f"number of leaves: {len(plan.leaf_defs)}",
                do="pass the leaves that flatten returned with this graphdef",
            )
        known = self.index_ref
        outer = [_built_before(known or {}, definition) for definition in plan.outer]
        if known:
            _check_new(known, plan)
        nodes, refilled = self._nodes(plan) if self.cache else (_new_nodes(plan), ())
        slots = [*plan.constants, *outer, *self._leaves(plan, leaves), *nodes]
        for step in plan.steps:
            step(slots)
        for node in refilled:
            node._pytree__info.mark_rebuilt()
        if refilled:
            self.journal.check()
        if known is not None:
            known.update(zip(plan.indices, plan.indexed(slots), strict=True))
        if self.contents is not None:
            containers = itertools.islice(slots, plan.first_container, None)
            built = [*nodes, *(each for each in containers if type(each) is not tuple)]
            self.contents = [*self.contents, *map(read_contents, built)] if plan.is_comparable else None
        return slots[plan.root]

    def _existing(self, definition: GraphDef) -> Node:
        """The cached object of a definition; ``None`` if there is none.

        Raises:
            GraphError: it is of a different class than the graphdef says.
        """
        cached = self.cache.get(definition.index)
        if cached is not None and type(cached) is not definition.type:
            name = definition.type.__name__
            is_mixed_up = type(definition) is VariableDef and not isinstance(cached, Variable)
            raise GraphError(
                "Expected a Variable in the cache"
                if is_mixed_up
                else f"Expected a node of type {name}, but the cache has {describe_type(cached)}",
                at=f"index {definition.index}",
                found=describe_type(cached),
                expected=f"a Variable of class {name}" if is_mixed_up else with_article(name),
                do="omit the cache, or pass one that maps the indices of this graphdef to matching objects",
            )
        return cached

    def _nodes(self, plan: Plan) -> tuple[list[Node], list[Pytree]]:
        """The empty graph nodes, from the cache if it has them; and plait's own nodes among the cached ones."""
        nodes, refilled = _new_nodes(plan), []
        for place, definition in enumerate([*plan.plain, *plan.others]):
            node = self._existing(definition)
            if node is None:
                continue
            self.journal.note_node(node)
            GRAPH_REGISTRY[type(node)].clear(node)
            nodes[place] = node
            if isinstance(node, Pytree):
                refilled.append(node)
                if place >= len(plan.plain):
                    own_info(node).marks = dict(definition.metadata or ())
        return nodes, refilled

    def _leaves(self, plan: Plan, leaves: Sequence[Value]) -> Sequence[Value]:
        """The variables, references, arrays and data leaves of the graph."""
        if self.cache:
            return [self._leaf(definition, leaf) for definition, leaf in zip(plan.leaf_defs, leaves, strict=True)]
        if plan.variables is None:
            return self.make_variables(plan.leaf_defs, leaves)
        made = self.make_variables(
            [plan.leaf_defs[place] for place in plan.variables], [leaves[place] for place in plan.variables]
        )
        result = [*leaves]
        for place, variable in zip(plan.variables, made, strict=True):
            result[place] = variable
        return result

    def _leaf(self, definition: Any, leaf: Value) -> Value:
        if type(definition) is LeafDef:
            cached = None if definition.index is None else self.cache.get(definition.index)
            if cached is None:
                return leaf
            if leaf is not cached and leaf is not UNTOUCHED:
                self.journal.note_reference(cached)
                cached[...] = leaf[...] if is_mutable_array(leaf) else leaf
            return cached
        cached = self._existing(definition)
        if cached is None:
            return self.make_variables([definition], [leaf])[0]
        _write_variable(cached, definition, leaf, self.journal)
        return cached


def _built_before(known: Mapping[Any, Node], definition: NodeRef) -> Node:
    try:
        return known[definition.index]
    except KeyError:
        raise GraphError(
            "a reference points to an object that was not built before",
            found=f"index {definition.index} of type {definition.type.__name__}",
            expected=f"one of the indices {sorted(known)}",
            do="merge the roots in the order in which they were split, within one context",
        ) from None


def _check_new(known: Mapping[Any, Node], plan: Plan) -> None:
    for definition in (*plan.plain, *plan.others):
        if definition.index in known:
            raise RegistryError(
                f"index {definition.index} of the graphdef is already used",
                found=f"{describe_type(known[definition.index])} in index_ref, for a {definition.type.__name__}",
                expected="an index_ref without objects at the indices of this graphdef",
                do="pass a new index_ref: plait.graph.unflatten(graphdef, state, index_ref={})",
            )


def _new_nodes(plan: Plan) -> list[Node]:
    others = [GRAPH_REGISTRY[definition.type].create_empty(definition.metadata) for definition in plan.others]
    return [*empty_objects(plan.classes), *others]


def own_variables(definitions: Sequence[VariableDef], leaves: Sequence[Value]) -> Sequence[Value]:
    """Variables of the current trace from leaves that are not used elsewhere: the leaves themselves, or new ones for
    raw values."""
    if all(issubclass(kind, Variable) for kind in set(map(type, leaves))):
        return leaves
    given = [dict_of(definition.metadata) for definition in definitions]
    made = make_variables([definition.type for definition in definitions], leaves, given)
    return [leaf if isinstance(leaf, Variable) else new for leaf, new in zip(leaves, made, strict=True)]


def copied_variables(definitions: Sequence[VariableDef], leaves: Sequence[Value]) -> Sequence[Value]:
    """New variables of the current trace, for any kind of leaves."""
    kinds = [*map(type, leaves)]
    if all(issubclass(kind, Variable) and kind.copy is Variable.copy for kind in set(kinds)):
        return copied_cells(kinds, map(cell_of, leaves))
    return own_variables(definitions, [leaf.copy() if isinstance(leaf, Variable) else leaf for leaf in leaves])


def raw_leaves(definitions: Sequence[VariableDef], leaves: Sequence[Value]) -> Sequence[Value]:
    """The leaves, unchanged."""
    return leaves


def _write_variable(variable: Variable[Value], definition: VariableDef, leaf: Value, journal: Journal) -> None:
    """Write a leaf into an existing variable; nothing is written if it would stay the same."""
    cell, new = variable._cell, leaf
    if not isinstance(leaf, Variable):
        raw = cell.raw if leaf is UNTOUCHED else leaf
        new = make_variable(definition.type, raw, dict_of(definition.metadata), None)
    has_new_value = leaf is not UNTOUCHED and new._cell.raw is not cell.raw
    has_new_metadata = metadata_key(new._cell) != metadata_key(cell)
    if cell.trace is not trace_state.value:
        if has_new_value and not has_ref(cell):
            journal.refuse(variable, "change the value of")
        if has_new_metadata:
            journal.refuse(variable, "change the metadata of")
    if has_new_value or has_new_metadata:
        journal.note_cell(cell)
        variable.update_from_state(new)
