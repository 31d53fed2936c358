"""The second of the two walks: from a graphdef and its leaves back to an object graph.

It follows the plan of the graphdef (``plan.py``): graph nodes are created empty, entered in the index table, and filled
after their children, so a child may point back to an ancestor. Pytree nodes are built after their children. With a
cache (index → existing object), graph nodes are emptied and refilled in place, and variables are written in place. This
is how a transform changes the caller's own objects; a journal notes what they held. (rules G25 to G30)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import GraphError, RegistryError
from ...util.jax_versions import is_mutable_array, trace_state
from ...util.words import describe_type, with_article
from ..objects.cells import dict_of, has_ref, metadata_key
from ..objects.journal import Journal
from ..objects.named import Sentinel
from ..objects.nodes import GRAPH_REGISTRY
from ..objects.pytree import Pytree, empty_objects, own_info
from ..objects.statics import closures_in, same_static
from ..objects.variables import Variable, cell_of, copied_cells, make_variable
from .graphdef import GraphDef, LeafDef, VariableDef
from .plan import Plan, plan_of

# The leaf of a variable in the cache that keeps its value.
UNTOUCHED: Any = Sentinel(__name__, "UNTOUCHED", "<untouched>")

MakeVariables = Callable[[Sequence[VariableDef], Sequence[Any]], Sequence[Any]]


class Builder:
    """Builds graphs that share one index table.

    Args:
        index_ref: index → object, filled while building; ``None`` if the graph shares nothing with other roots.
        cache: index → existing object to reuse.
        make_variables: ``(VariableDefs, leaves) -> objects``, for variables that are not in the cache.
        journal: notes what the objects in the cache held; needed with a cache, and open while ``build`` runs.
    """

    def __init__(
        self,
        index_ref: dict[int, Any] | None = None,
        cache: Mapping[int, Any] | None = None,
        make_variables: MakeVariables | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.index_ref: Any = index_ref  # a dict or None
        self.cache = cache or {}
        self.make_variables = make_variables or own_variables
        self.journal: Any = journal

    def build(self, graphdef: GraphDef, leaves: Sequence[Any]) -> Any:
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
        for node, before in refilled:
            for name, value in before.items():
                # The graphdef may have a function that was equal to this one; what it closes over may change.
                if any(closures_in(value)) and same_static(value, node.__dict__.get(name)):
                    node.__dict__[name] = value
            node._pytree__info.mark_rebuilt()
        if refilled:
            self.journal.check()
        if known is not None:
            known.update(zip(plan.indices, plan.indexed(slots), strict=True))
        return slots[plan.root]

    def _existing(self, definition: Any) -> Any:
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

    def _nodes(self, plan: Plan) -> tuple[list[Any], list[tuple[Pytree, dict[str, Any]]]]:
        """The empty graph nodes, from the cache if it has them; and plait's own nodes among the cached ones, each with
        the attributes that it had."""
        nodes, refilled = _new_nodes(plan), []
        for place, definition in enumerate([*plan.plain, *plan.others]):
            node = self._existing(definition)
            if node is None:
                continue
            self.journal.note_node(node)
            attributes = {**vars(node)} if isinstance(node, Pytree) else {}
            GRAPH_REGISTRY[type(node)].clear(node)
            nodes[place] = node
            if isinstance(node, Pytree):
                refilled.append((node, attributes))
                if place >= len(plan.plain):
                    own_info(node).marks = dict(definition.metadata or ())
        return nodes, refilled

    def _leaves(self, plan: Plan, leaves: Sequence[Any]) -> Sequence[Any]:
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

    def _leaf(self, definition: Any, leaf: Any) -> Any:
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


def _built_before(known: Mapping[int, Any], definition: Any) -> Any:
    try:
        return known[definition.index]
    except KeyError:
        raise GraphError(
            "a reference points to an object that was not built before",
            found=f"index {definition.index} of type {definition.type.__name__}",
            expected=f"one of the indices {sorted(known)}",
            do="merge the roots in the order in which they were split, within one context",
        ) from None


def _check_new(known: Mapping[Any, Any], plan: Plan) -> None:
    for definition in (*plan.plain, *plan.others):
        if definition.index in known:
            raise RegistryError(
                f"index {definition.index} of the graphdef is already used",
                found=f"{describe_type(known[definition.index])} in index_ref, for a {definition.type.__name__}",
                expected="an index_ref without objects at the indices of this graphdef",
                do="pass a new index_ref: plait.graph.unflatten(graphdef, state, index_ref={})",
            )


def _new_nodes(plan: Plan) -> list[Any]:
    others = [GRAPH_REGISTRY[definition.type].create_empty(definition.metadata) for definition in plan.others]
    return [*empty_objects(plan.classes), *others]


def own_variables(definitions: Sequence[VariableDef], leaves: Sequence[Any]) -> Sequence[Any]:
    """Variables of the current trace from leaves that are not used elsewhere: the leaves themselves, or new ones for
    raw values."""
    if all(issubclass(kind, Variable) for kind in set(map(type, leaves))):
        return leaves
    trace = trace_state.value
    return [
        leaf
        if isinstance(leaf, Variable)
        else make_variable(definition.type, leaf, dict_of(definition.metadata), trace)
        for definition, leaf in zip(definitions, leaves, strict=True)
    ]


def copied_variables(definitions: Sequence[VariableDef], leaves: Sequence[Any]) -> Sequence[Any]:
    """New variables of the current trace, for any kind of leaves."""
    kinds = [*map(type, leaves)]
    if all(issubclass(kind, Variable) and kind.copy is Variable.copy for kind in set(kinds)):
        return copied_cells(kinds, map(cell_of, leaves))
    return own_variables(definitions, [leaf.copy() if isinstance(leaf, Variable) else leaf for leaf in leaves])


def raw_leaves(definitions: Sequence[VariableDef], leaves: Sequence[Any]) -> Sequence[Any]:
    """The leaves, unchanged."""
    return leaves


def _write_variable(variable: Any, definition: VariableDef, leaf: Any, journal: Journal) -> None:
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
