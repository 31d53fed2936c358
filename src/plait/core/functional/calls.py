"""The functional face of a graph: split it into structure and values, merge it back, read and write its state.

All functions here work on the two walks; a graph that was walked before and has not changed since is not walked again.
(rules G31 to G46)
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

import jax

from ..._compat import is_mutable_array, trace_state
from ...errors import ArgumentError, FilterError, GraphError, GraphTypeError, RegistryError
from ...paths import Path, describe_path, sorted_keys
from ...typing import FilterLiteral
from ..graph.flatten import Link, RefMap, Walk, path_of
from ..graph.graphdef import GraphDef, NodeDef, NodeRef
from ..graph.state_leaves import leaves_in_order
from ..graph.unflatten import Builder, copied_variables, own_variables, raw_leaves
from ..graph.walks import CachedWalk, find_walk
from ..objects.containers import List
from ..objects.filters import resolve_filters
from ..objects.module import Pytree, check_kept_status, copied_buffers
from ..objects.nodes import _KINDS, Kind, check_node, get_node_impl, kind_of, unwrapped
from ..objects.state import FlatState, State, check_state, group_leaves, merge_state
from ..objects.trace_guard import check_trace, raise_foreign_trace
from ..objects.variables import PLAIN_METADATA, Cell, Variable, cell_of, copied_cells
from ..objects.visit import Place, visit

N = TypeVar("N")


def flatten(node: Any, /, ref_index: RefMap | None = None, *, with_paths: bool = True) -> tuple[GraphDef, Any]:
    """A graph as its graphdef and its leaves in walk order.

    Args:
        node: the root.
        ref_index: indices that several calls share; objects met by an earlier call become back-references.
        with_paths: leaves as a ``FlatState`` of detached variables; otherwise a list of raw values.

    Raises:
        RegistryError: the root is no node.
    """
    if kind_of(node) is Kind.STATIC:
        raise RegistryError(
            "flatten reached a value that is no node",
            found=f"{node!r:.80} of type {type(node).__name__}",
            expected="a module, variable, array or registered container",
            do=f"derive {type(node).__name__} from plait.Pytree, or register it with register_graph_node_type",
        )
    walk = Walk(ref_index)
    graphdef = walk.add(node)
    if not with_paths:
        return graphdef, [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    leaves = [detached(leaf) for leaf in walk.leaves]
    return graphdef, FlatState.from_sorted(tuple(map(path_of, walk.links)), leaves)


def detached(leaf: Any) -> Any:
    """A state leaf: a variable of its own around the same value, or the array itself."""
    return leaf.copy() if isinstance(leaf, Variable) else leaf


def unflatten(
    graphdef: GraphDef,
    state: Any,
    /,
    *,
    index_ref: dict[int, Any] | None = None,
    index_ref_cache: Mapping[int, Any] | None = None,
    outer_index_outer_ref: Mapping[int, Any] | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """The graph of a graphdef around the leaves of a state.

    Args:
        state: a ``State``, nested mapping, ``FlatState``, or a list of leaves in walk order.
        index_ref: index → object, filled while building; shared by several calls.
        index_ref_cache: index → existing object to reuse (``outer_index_outer_ref`` is its other name).
        copy_variables: give the result variables of its own, instead of the state's.
        recreate_variables: make variables around raw values; ``False`` keeps the raw values.

    Raises:
        GraphError: the state does not fit the graphdef; the message names the paths.
    """
    make_variables = copied_variables if copy_variables else own_variables if recreate_variables else raw_leaves
    builder = Builder(index_ref, index_ref_cache or outer_index_outer_ref, make_variables)
    return builder.build(graphdef, leaves_of(graphdef, state))


def leaves_of(graphdef: GraphDef, state: Any) -> list[Any]:
    """The leaves of any form of state, in the walk order of a graphdef."""
    if isinstance(state, list):
        return state
    if not isinstance(graphdef, NodeDef):
        if isinstance(graphdef, NodeRef) or (isinstance(state, State) and not state):
            return []
        return [state]
    if isinstance(state, FlatState):
        state = state.to_nested_state()
    check_state(state, "merge")
    return leaves_in_order(graphdef, state._mapping if isinstance(state, State) else state)


def _root_state(walk: CachedWalk) -> Any:
    """The whole state of a single root: nested, or the leaf itself for a leaf root. (rule G24)"""
    leaves = _detached_leaves(walk)
    return walk.nest(leaves) if isinstance(walk.graphdefs[0], NodeDef) else leaves[0]


def _detached_leaves(walk: CachedWalk) -> list[Any]:
    if walk.only_variables:
        return copied_cells(walk.types, walk.cells)  # type: ignore[arg-type]
    pairs = [(cls, cell) for cls, cell in zip(walk.types, walk.cells, strict=True) if cls is not None]
    variables = iter(copied_cells(*zip(*pairs, strict=True)) if pairs else ())
    return [cell.raw if cls is None else next(variables) for cls, cell in zip(walk.types, walk.cells, strict=True)]


def _grouped(walk: CachedWalk, filters: tuple[FilterLiteral, ...], *, exhaustive: bool) -> list[Any]:
    leaves = _detached_leaves(walk)
    flat = FlatState.from_sorted(tuple(walk.paths()), leaves)
    groups = group_leaves(flat, filters, exhaustive=exhaustive)
    if isinstance(walk.graphdefs[0], NodeDef):
        return [group.to_nested_state() for group in groups]
    return [group.leaves[0] if len(group) else State({}) for group in groups]


def split(node: Any, *filters: FilterLiteral) -> Any:
    """A graph as its structure and its values.

    Args:
        node: a module, a variable, or a container of them.
        *filters: one state for each; together they must match every leaf.

    Returns:
        ``(graphdef, state)``, or ``(graphdef, state_1, …, state_n)`` for n filters. The variables in the states are
        detached: changing them does not change the model.

    Raises:
        GraphTypeError: ``node`` is no graph.
        FilterError: a leaf matches none of the filters.

    Example:
        >>> model = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> graphdef, params, rest = plait.split(model, plait.Param, ...)
        >>> list(params), list(rest)
        (['bias', 'scale'], ['mean', 'var'])
    """
    check_node(node, "split")
    walk = find_walk((node,))
    if len(filters) == 0:
        return walk.graphdefs[0], _root_state(walk)
    return (walk.graphdefs[0], *_grouped(walk, filters, exhaustive=True))


def state(node: Any, *filters: FilterLiteral) -> Any:
    """The values of a graph.

    Args:
        *filters: none gives the whole state, one gives one state, several a tuple of states; they need not cover
            every leaf, and a leaf goes to the first that matches.

    Example:
        >>> plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Param)["bias"].shape
        (3,)
    """
    check_node(node, "state")
    walk = find_walk((node,))
    if not filters:
        return _root_state(walk)
    groups = _grouped(walk, filters, exhaustive=False)
    return groups[0] if len(groups) == 1 else tuple(groups)


def graphdef(node: Any, /) -> GraphDef:
    """The structure of a graph; equal structures give the same object."""
    check_node(node, "graphdef")
    return find_walk((node,)).graphdefs[0]


def variables(node: Any, *filters: FilterLiteral) -> Any:
    """The live variables of a graph: a state whose leaves are the model's own ``Variable`` objects.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.variables(model)["kernel"] is model.kernel
        True
    """
    check_node(node, "variables")
    walk = Walk()
    walk.add(node)
    pairs = [
        (path_of(link), leaf) for link, leaf in zip(walk.links, walk.leaves, strict=True) if isinstance(leaf, Variable)
    ]
    flat = FlatState(pairs, sort=False)
    groups = group_leaves(flat, filters, exhaustive=False) if filters else [flat]
    if isinstance(node, Variable):
        results = [group.leaves[0] if len(group) else State({}) for group in groups]
    else:
        results = [group.to_nested_state() for group in groups]
    return results[0] if len(results) == 1 else tuple(results)


def merge(
    graphdef: Any,
    state: Any = None,
    /,
    *states: Any,
    copy: bool = True,
    recreate_variables: bool = True,
) -> Any:
    """The graph of a graphdef and its states: the inverse of ``split``.

    Args:
        graphdef: the structure, or a ``GraphState`` (further ones may follow).
        state: a ``State``, a nested dict of variables or raw values, or a list of leaves in walk order.
        *states: more states, merged by path; later ones win.
        copy: give the result variables of its own; ``False`` makes the state's variables those of the result.
        recreate_variables: make variables around raw values.

    Raises:
        GraphTypeError: the first argument is no graphdef, or no state was given.
        GraphError: the states do not fit; the message names the paths.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> again = plait.merge(*plait.split(model))
        >>> again is model, bool((again.kernel[...] == model.kernel[...]).all())
        (False, True)
    """
    if isinstance(graphdef, GraphState):
        bundles = [each for each in (graphdef, state, *states) if each is not None]
        if any(not isinstance(each, GraphState) or each.graphdef != graphdef.graphdef for each in bundles):
            raise GraphError(
                "the graph states have different graphdefs",
                found=f"{len(bundles)} graph states",
                expected="equal graphdefs",
                do="merge only what one call of unpack gave",
            )
        graphdef, state, states = graphdef.graphdef, graphdef.state, tuple(each.state for each in bundles[1:])
    if not isinstance(graphdef, GraphDef):
        raise GraphTypeError(
            "merge takes a graphdef first",
            found=f"a {type(graphdef).__name__}",
            expected="a GraphDef or GraphState",
            do="call merge(graphdef, state) with what split(model) returned",
        )
    if state is None:
        raise GraphTypeError(
            "merge was called without a state",
            found="a graphdef alone",
            expected="merge(graphdef, state, ...)",
            do="pass the state that split returned beside the graphdef",
        )
    if isinstance(state, list) and states:
        raise GraphError(
            "only one list of leaves can be merged",
            found=f"{1 + len(states)} states, the first a list",
            expected="merge(graphdef, [leaves])",
            do="concatenate the leaves in walk order",
        )
    if states:
        state = _joined_states(graphdef, (state, *states))
    make_variables = copied_variables if copy else own_variables
    if not recreate_variables:
        make_variables = raw_leaves
    return Builder(None, None, make_variables).build(graphdef, leaves_of(graphdef, state))


def _joined_states(graphdef: GraphDef, states: tuple[Any, ...]) -> Any:
    if not isinstance(graphdef, NodeDef):
        full = [each for each in states if not (isinstance(each, State) and not each)]
        return full[-1]
    for each in states:
        check_state(each, "merge")
    return merge_state(*(each.to_nested_state() if isinstance(each, FlatState) else each for each in states))


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Write states into a graph, in place. Paths that a state does not have stay as they are.

    Existing variables get the values (and the metadata, where the leaf is a variable); new entries are added to nodes
    that can take them. Nothing is changed when an entry does not fit.

    Raises:
        GraphError: an entry does not fit the graph; the message names its path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.update(model, plait.State({"bias": jnp.ones(3)}))
        >>> model.bias[...].tolist()
        [1.0, 1.0, 1.0]
    """
    if isinstance(node, Variable):
        full = [each for each in (state, *states) if not (isinstance(each, State) and not each)]
        if len(full) != 1:
            raise GraphError(
                "a variable is updated by exactly one state",
                found=f"{len(full)} states that are not empty",
                expected="1",
                do="pass the leaf for the variable",
            )
        check_trace(node._cell.trace, node, "update")
        _write_leaf(node, full[0])
        return
    if kind_of(node) not in (Kind.GRAPH, Kind.PYTREE):
        raise RegistryError(
            "update takes a module, a variable or a container of them",
            found=f"{node!r:.80} of type {type(node).__name__}",
            expected="a graph that can be changed in place",
            do="call update(model, state)",
        )
    for each in (state, *states):
        check_state(each, "update")
    nested = [each.to_nested_state() if isinstance(each, FlatState) else each for each in (state, *states)]
    whole = nested[0] if len(nested) == 1 else merge_state(*nested)
    for owner, key, cell, value in _planned_writes(node, whole._mapping if isinstance(whole, State) else whole):
        if cell is not None:
            source = cell_of(value)
            if cell.metadata is PLAIN_METADATA and source.metadata is PLAIN_METADATA:
                cell.raw = source.raw
            else:
                owner.update_from_state(value)
        elif key is None:
            _write_leaf(owner, value)
        else:
            get_node_impl(owner).set_key(owner, key, value)  # type: ignore[union-attr,misc]


def _write_leaf(target: Any, value: Any) -> None:
    if isinstance(target, Variable):
        if isinstance(value, Variable):
            target.update_from_state(value)
        elif target._cell.metadata["ref"]:
            target._cell.raw[...] = value
        else:
            target._cell.raw = value
    else:
        target[...] = value[...] if is_mutable_array(value) else value


def children_by_key(node: Any) -> dict[Any, Any]:
    """The children of a node, marks taken off."""
    if type(node) is dict:
        return node
    if type(node) is list:
        return dict(enumerate(node))
    if isinstance(node, Pytree) and List not in type(node).__mro__:  # isinstance(node, List) asks an abstract class
        return node.__dict__
    impl = get_node_impl(node)
    assert impl is not None
    return {key: unwrapped(child) for key, child in impl.flatten(node)[0]}


_ABSENT: Any = type("Absent", (), {})()
_VARIABLE, _GRAPH, _PYTREE = Kind.VARIABLE, Kind.GRAPH, Kind.PYTREE


# (owner, key, cell, value): a child to set; without a key a leaf to write, from a variable if the cell is given.
_Write = tuple[Any, Any, Cell | None, Any]


def _planned_writes(node: Any, mapping: Mapping[Any, Any]) -> list[_Write]:
    """The writes that an update needs, every one checked."""
    trace = trace_state.value
    known = _KINDS
    writes: list[_Write] = []
    stack: list[tuple[Any, Mapping[Any, Any], Link]] = [(node, mapping, None)]
    while stack:
        owner, mapping, link = stack.pop()
        children = children_by_key(owner)
        size = len(children)
        for key in sorted_keys(mapping) if List in type(owner).__mro__ else mapping:
            value = mapping[key]
            current = children.get(key, _ABSENT)
            kind = known.get(type(current)) or kind_of(current)
            if kind is _VARIABLE:
                cell = cell_of(current)
                if cell.trace is not trace:
                    raise_foreign_trace(cell.trace, current, "update")
                if type(value) is type(current) or isinstance(value, Variable):
                    usual = type(current).update_from_state is Variable.update_from_state
                    writes.append((current, None, cell if usual else None, value))
                    continue
                if isinstance(value, Mapping) and not isinstance(cell.raw, Mapping):
                    raise _misfit(path_of((link, key)), value, f"a value for a {type(current).__name__}")
                writes.append((current, None, None, value))
                continue
            if (kind is _GRAPH or kind is _PYTREE) and current is not None:
                if type(value) is not dict and isinstance(value, State):
                    value = value._mapping
                if type(value) is not dict and (isinstance(value, Variable) or not isinstance(value, Mapping)):
                    raise _misfit(
                        path_of((link, key)), value, f"the entries of a {type(current).__name__} (a subgraph)"
                    )
                stack.append((current, value, (link, key)))
            elif kind is Kind.REF:
                writes.append((current, None, None, value))
            elif current is _ABSENT and isinstance(value, Mapping) and not isinstance(value, Variable) and value:
                raise GraphError(
                    "the state has entries for a part that the graph does not have",
                    at=describe_path(path_of((link, key))),
                    found=f"the entries {sorted(map(str, value))}",
                    expected=f"parts of a {type(owner).__name__}: {sorted(map(str, children))}",
                    do="pass a state of the same model; to add a module, assign it",
                )
            elif value is not current:  # the same array again is welcome in a tuple, too
                impl = get_node_impl(owner)
                if impl is None or impl.set_key is None:
                    raise GraphError(
                        f"Cannot set key {key!r} on an immutable {type(owner).__name__}",
                        at=describe_path(path_of((link, key))),
                        found=f"a {type(value).__name__}",
                        expected="an entry of a module, list, dict or state",
                        do="replace the whole container on its owner",
                    )
                _check_can_set(owner, key, value, path_of((link, key)), size)
                size += current is _ABSENT and type(key) is int
                if isinstance(value, Mapping) and not isinstance(value, Variable):
                    value = State(value)
                writes.append((owner, key, None, value.copy() if isinstance(value, Variable) else value))
    return writes


def _check_can_set(owner: Any, key: Any, value: Any, path: Path, size: int) -> None:
    """Refuse a child that its owner would refuse, before anything is written."""
    if isinstance(owner, Pytree):
        check_trace(owner._info.trace, owner, "update")
    if isinstance(owner, list) or (isinstance(owner, List) and type(key) is int):
        known = size if isinstance(owner, list) else size + 1
        if type(key) is not int or not 0 <= key < known:
            raise GraphError(
                f"Cannot set key {key!r} of a {type(owner).__name__}",
                at=describe_path(path),
                found=f"a {type(owner).__name__} of length {size}",
                expected=f"an index below {known}",
                do="append the missing elements first",
            )
    elif isinstance(owner, Pytree):
        check_kept_status(owner, key, value)


def _misfit(path: Path, value: Any, expected: str) -> GraphError:
    return GraphError(
        "a leaf where a subgraph is expected" if "subgraph" in expected else "a mapping where a leaf is expected",
        at=describe_path(path),
        found=f"a {type(value).__name__}: {value!r:.80}",
        expected=expected,
        do="pass a state of the same model",
    )


def pop(node: Any, *filters: FilterLiteral) -> Any:
    """Remove the leaves that match from their owners, and return them.

    Args:
        *filters: one state is returned for each; a leaf goes to the first that matches.

    Raises:
        FilterError: no filter was given.
        GraphError: a matching leaf sits in a container that nothing can be removed from.

    Example:
        >>> model = plait.BatchNorm(3, rngs=plait.Rngs(0))
        >>> stats = plait.pop(model, plait.BatchStat)
        >>> list(stats), hasattr(model, "mean")
        (['mean', 'var'], False)
    """
    states = graph_pop(node, filters)
    return states[0] if len(filters) == 1 else states


def graph_pop(node: Any, filters: tuple[FilterLiteral, ...], /) -> tuple[State, ...]:
    """``pop`` with the filters as a tuple; always a tuple of states."""
    if not filters:
        raise FilterError(
            "pop needs at least one filter",
            found="no filter",
            expected="pop(model, filter, ...)",
            do="to remove everything pass `...`",
        )
    check_node(node, "pop")
    predicates = resolve_filters(filters)
    groups: list[list[tuple[Path, Any]]] = [[] for _ in predicates]
    removals: list[tuple[Any, Any]] = []
    popped: set[Place] = set()
    for place in visit(node):
        if place.owner is None or place.kind not in _LEAVES or place.first in popped:
            continue
        path, leaf, owner = place.path, place.value, place.owner.value
        number = next((number for number, predicate in enumerate(predicates) if predicate(path, leaf)), None)
        if number is not None:
            _check_can_pop(owner, path, leaf)
            popped.add(place.first or place)
            removals.append((owner, place.key))
            groups[number].append((path, detached(leaf)))
    for owner, key in reversed(removals):  # from the end, so that the indices of a List stay valid
        get_node_impl(owner).pop_key(owner, key)  # type: ignore[union-attr,misc]
    return tuple(FlatState(group, sort=True).to_nested_state() for group in groups)


_LEAVES = (Kind.VARIABLE, Kind.REF, Kind.ARRAY)


def _check_can_pop(owner: Any, path: Path, leaf: Any) -> None:
    impl = get_node_impl(owner)
    if impl is None or impl.pop_key is None:
        raise GraphError(
            f"Cannot pop key {path[-1]!r} of a {type(owner).__name__}",
            at=describe_path(path),
            found=f"a {type(leaf).__name__} in a {type(owner).__name__}",
            expected="leaves in modules or dicts",
            do="replace the whole container on its owner",
        )
    if isinstance(owner, Pytree):
        check_trace(owner._info.trace, owner, "pop from")


def clone(node: N, variables: bool = True, *, arrays: bool = False) -> N:
    """A deep structural copy that keeps sharing and cycles.

    Args:
        variables: give the copy variables of its own; ``False`` shares the variable objects.
        arrays: copy the buffers too, instead of sharing them.

    Raises:
        ArgumentError: ``arrays=True`` with ``variables=False``.
    """
    if arrays and not variables:
        raise ArgumentError(
            "clone cannot copy the arrays of variables that it shares",
            found="variables=False, arrays=True",
            expected="arrays=True only with variables=True",
            do="drop one of the two",
        )
    check_node(node, "clone")
    if not variables:
        walk = Walk()
        graphdef = walk.add(node)
        return Builder().build(graphdef, walk.leaves)
    cached = find_walk((node,))
    leaves = _detached_leaves(cached)
    if arrays:
        leaves = [
            leaf.copy(jax.tree.map(copied_buffers, leaf.get_raw_value()))
            if isinstance(leaf, Variable)
            else copied_buffers(leaf)
            for leaf in leaves
        ]
    return Builder().build(cached.graphdefs[0], leaves)


class GraphState(MutableMapping[Any, Any]):
    """A graphdef and a state in one value: behaves as the state, is a pytree of the state's leaves. (rule G46)"""

    __slots__ = ("graphdef", "state")

    def __init__(self, graphdef: GraphDef, state: State) -> None:
        self.graphdef = graphdef
        self.state = state

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __iter__(self) -> Any:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        return f"GraphState({self.graphdef!r}, {self.state!r})"


jax.tree_util.register_pytree_with_keys(
    GraphState,
    lambda bundle: (((jax.tree_util.GetAttrKey("state"), bundle.state),), bundle.graphdef),
    lambda graphdef, children: GraphState(graphdef, *children),
)


def unpack(node: Any, *filters: FilterLiteral) -> Any:
    """One ``GraphState`` per filter; without filters one for everything."""
    graphdef, *states = split(node, *filters)
    bundles = tuple(GraphState(graphdef, each) for each in states)
    return bundles[0] if len(bundles) == 1 else bundles
