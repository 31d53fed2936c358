"""The second of the two walks: from a graphdef and its leaves back to an object graph.

It follows the plan of the graphdef (``plan.py``): graph nodes are created empty, entered in the index table, and filled
after their children, so a child may point back to an ancestor. Pytree nodes are built after their children. With a
cache (index → existing object), graph nodes are emptied and refilled in place, and variables are written in place. This
is how a transform changes the caller's own objects. (rules G25 to G30)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._compat import is_mutable_array, trace_state
from ...errors import GraphError, RegistryError
from ...ground.words import describe_type, with_article
from ..objects.cells import dict_of, metadata_key
from ..objects.nodes import GRAPH_REGISTRY
from ..objects.pytree import Pytree, empty_objects, own_info
from ..objects.variables import Variable, cell_of, copied_cells, make_variable
from .graphdef import GraphDef, LeafDef, VariableDef
from .plan import Plan, plan_of
from .refills import UNTOUCHED

MakeVariables = Callable[[Sequence[VariableDef], Sequence[Any]], Sequence[Any]]


class Builder:
    """Builds graphs that share one index table.

    Args:
        index_ref: index → object, filled while building; ``None`` if the graph shares nothing with other roots.
        cache: index → existing object to reuse.
        make_variables: ``(VariableDefs, leaves) -> objects``, for variables that are not in the cache.
    """

    def __init__(
        self,
        index_ref: dict[int, Any] | None = None,
        cache: Mapping[int, Any] | None = None,
        make_variables: MakeVariables | None = None,
    ) -> None:
        self.index_ref: Any = index_ref  # a dict or None
        self.cache = cache or {}
        self.make_variables = make_variables or own_variables

    def build(self, graphdef: GraphDef, leaves: Sequence[Any]) -> Any:
        """The graph of ``graphdef`` around ``leaves``, one for each of its leaf definitions in walk order.

        Raises:
            GraphError: the number of leaves or the type of a cached object is wrong.
        """
        plan = plan_of(graphdef)
        if len(plan.leaves) != len(leaves):
            raise GraphError(
                "Incorrect number of leaves for the graphdef",
                found=f"number of leaves: {len(leaves)}",
                expected=f"number of leaves: {len(plan.leaves)}",
                do="pass the leaves that flatten returned with this graphdef",
            )
        known = self.index_ref
        outer = [_built_before(known or {}, definition) for definition in plan.outer]
        if known:
            _check_new(known, plan)
        if self.cache:
            self._check_types(plan)
        nodes, refilled = self._nodes(plan) if self.cache else (_new_nodes(plan), ())
        slots = [*plan.constants, *outer, *self._leaves(plan, leaves), *nodes]
        if known is not None:
            known.update(zip(plan.indices, plan.indexed(slots), strict=True))
        for step in plan.steps:
            step(slots)
        for node in refilled:
            node._info.mark_rebuilt()
        return slots[plan.root]

    def _check_types(self, plan: Plan) -> None:
        """Raise, before anything is written, if a cached object is of a different class than the graphdef says."""
        variables = (part for part in plan.leaves if type(part) is VariableDef)
        for definition in (*plan.plain, *plan.others, *variables):
            cached = self.cache.get(definition.index)  # type: ignore[arg-type]
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

    def _nodes(self, plan: Plan) -> tuple[list[Any], list[Pytree]]:
        """The empty graph nodes, from the cache if it has them; and plait's own nodes among the cached ones."""
        found = [self.cache.get(definition.index) for definition in (*plan.plain, *plan.others)]  # type: ignore[arg-type]
        nodes = _new_nodes(plan)
        for place, node in enumerate(found):
            if node is not None:
                GRAPH_REGISTRY[type(node)].clear(node)
                nodes[place] = node
                if isinstance(node, Pytree) and place >= len(plan.plain):
                    own_info(node).marks = dict(plan.others[place - len(plan.plain)].metadata or ())
        return nodes, [node for node in found if isinstance(node, Pytree)]

    def _leaves(self, plan: Plan, leaves: Sequence[Any]) -> Sequence[Any]:
        """The variables, references, arrays and data leaves of the graph."""
        if self.cache:
            return [self._leaf(definition, leaf) for definition, leaf in zip(plan.leaves, leaves, strict=True)]
        if plan.variables is None:
            return self.make_variables(plan.leaves, leaves)
        made = self.make_variables(
            [plan.leaves[place] for place in plan.variables], [leaves[place] for place in plan.variables]
        )
        result = [*leaves]
        for place, variable in zip(plan.variables, made, strict=True):
            result[place] = variable
        return result

    def _leaf(self, definition: Any, leaf: Any) -> Any:
        cached = None if definition.index is None else self.cache.get(definition.index)
        if type(definition) is LeafDef:
            if cached is None:
                return leaf
            if leaf is not cached and leaf is not UNTOUCHED:
                cached[...] = leaf[...] if is_mutable_array(leaf) else leaf
            return cached
        if cached is None:
            return self.make_variables([definition], [leaf])[0]
        return write_cached_variable(cached, definition, leaf)


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


def write_cached_variable(cached: Any, definition: VariableDef, leaf: Any) -> Any:
    """Write a leaf into an existing variable; nothing is written if it would stay the same."""
    cell = cached._cell
    if isinstance(leaf, Variable):
        if leaf._cell.raw is not cell.raw or metadata_key(leaf._cell) != metadata_key(cell):
            cached.update_from_state(leaf)
        return cached
    if leaf is not UNTOUCHED and leaf is not cell.raw:
        if cell.metadata["ref"]:
            cell.raw[...] = leaf
        else:
            cell.raw = leaf
    if definition.metadata != metadata_key(cell):
        cached.update_from_state(make_variable(definition.type, cell.raw, dict_of(definition.metadata), None))
    return cached
