"""Writing states into a graph in place; a journal puts everything back if an entry is refused. (rules G38, G39)"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...errors import GraphError, RegistryError
from ...typing import Node, Tree, Value
from ...util.jax_versions import is_mutable_array, trace_state
from ...util.paths import describe_path, sorted_keys
from ...util.sentinels import NOTHING
from ...util.words import describe_type
from ..graph.graphdef import Link, path_of
from ..graph.state_leaves import mismatch, nested_mapping
from ..nodes.containers import List
from ..nodes.journal import Journal, put_back_cell
from ..nodes.nodes import (
    _KINDS,
    Kind,
    change_of,
    check_index,
    check_walk,
    children_of,
    kind_of,
    not_a_node,
    unwrapped,
)
from ..nodes.pytree import Pytree
from ..states.state import State
from ..traces.guard import check_trace
from ..traces.lost_writes import note_write
from ..variables.cells import DETACHED, PLAIN_METADATA, Cell, note_foreign_read
from ..variables.variables import Variable, cell_of


def update(node: Node, state: Tree, /, *states: Tree) -> None:
    """Write states into a graph, in place. Paths that are not in a state keep their values.

    Existing variables get the new values (and the metadata, if the leaf is a variable); new entries are added to nodes
    that accept them. If an entry does not match, nothing is changed.

    Raises:
        GraphError: an entry does not match the graph; the message names its path.
        SharingError: an entry is for a view of a stack that the graph also contains.

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
                "a variable can be updated by one state only",
                found=f"{len(full)} states that are not empty",
                expected="1",
                do="pass only the new value of the variable",
            )
        check_trace(node._cell.trace, node, "update")
        with Journal() as journal:
            _write_leaf(node, full[0], journal)
        return
    if kind_of(node) not in (Kind.GRAPH, Kind.PYTREE):
        raise not_a_node(RegistryError, node, "update")
    with Journal() as journal:
        _write(node, nested_mapping((state, *states), "update"), journal)


def _write_leaf(target: Value, value: Value, journal: Journal) -> None:
    if isinstance(target, Variable):
        journal.note_cell(target._cell)
        if isinstance(value, Variable):
            target.update_from_state(value)
        elif target._cell.metadata["ref"]:
            target._cell.raw[...] = value
        else:
            target._cell.raw = value
            if target._cell.version == DETACHED:
                note_write(target)
    else:
        journal.note_reference(target)
        target[...] = value[...] if is_mutable_array(value) else value


def children_by_key(node: Node) -> dict[Any, Value]:
    """The children of a node, without marks."""
    if type(node) is dict:
        return node
    if type(node) is list:
        return dict(enumerate(node))
    if isinstance(node, Pytree) and List not in type(node).__mro__:  # isinstance(node, List) asks an abstract class
        return node.__dict__
    return {key: unwrapped(child) for key, child in children_of(node)}


_VARIABLE, _GRAPH, _PYTREE = Kind.VARIABLE, Kind.GRAPH, Kind.PYTREE
_USUAL = Variable.update_from_state


def _write(node: Node, mapping: Mapping[Hashable, Value], journal: Journal) -> None:
    """Write the entries of a state."""
    trace = trace_state.value
    known, notes = _KINDS, journal.notes
    holds_layers = False
    stack: list[tuple[Node, Mapping[Hashable, Value], Link]] = [(node, mapping, None)]
    while stack:
        owner, mapping, link = stack.pop()
        children = children_by_key(owner)
        for key in sorted_keys(mapping) if List in type(owner).__mro__ else mapping:
            value = mapping[key]
            current = children.get(key, NOTHING)
            if current is NOTHING and type(key) is int and getattr(owner, "_pytree__has_layers", False):
                current = owner[key]
            kind = known.get(type(current)) or kind_of(current)
            if kind is _VARIABLE:
                cell = cell_of(current)
                if cell.trace is not trace:
                    journal.refuse(current, "update")
                is_leaf = type(value) is type(current) or isinstance(value, Variable)
                if not is_leaf and isinstance(value, Mapping) and not isinstance(cell.raw, Mapping):
                    expected = describe_type(current)
                    raise mismatch((link, key), owner, "a mapping where a leaf is expected", value, expected)
                holds_layers = holds_layers or (type(cell) is not Cell and cell.stored is not cell)
                if is_leaf and cell.metadata is PLAIN_METADATA and type(current).update_from_state is _USUAL:
                    source = cell_of(value)
                    if type(cell) is Cell:
                        notes.append((put_back_cell, cell, cell.raw, PLAIN_METADATA))  # without a call for each
                    else:
                        journal.note_cell(cell)
                    if source.trace is not trace:
                        note_foreign_read(source)
                    if source.metadata is PLAIN_METADATA:
                        cell.raw = source.raw
                    else:
                        current.update_from_state(value)
                    if cell.version == DETACHED:
                        note_write(current)
                else:
                    _write_leaf(current, value, journal)
                continue
            if (kind is _GRAPH or kind is _PYTREE) and current is not None:
                if type(value) is not dict and isinstance(value, State):
                    value = value._mapping
                if type(value) is not dict and (isinstance(value, Variable) or not isinstance(value, Mapping)):
                    expected = f"the entries of {describe_type(current)}"
                    raise mismatch((link, key), owner, "a leaf where a subgraph is expected", value, expected)
                stack.append((current, value, (link, key)))
            elif kind is Kind.REF:
                _write_leaf(current, value, journal)
            elif current is NOTHING and _is_part(value) and not getattr(owner, "_pytree__takes_parts", False):
                raise _no_such_part(owner, children, (link, key), value)
            elif value is not current:  # in a tuple, the same array again is allowed
                _set_child(owner, key, value, current is NOTHING, describe_path(path_of((link, key))), journal)
    if holds_layers:
        check_walk(node)


def _set_child(owner: Node, key: Hashable, value: Value, is_new: bool, path: str, journal: Journal) -> None:
    """Replace a child that is not a node, or add one."""
    set_key = change_of("set", owner, key, value, path)
    if isinstance(owner, Pytree):
        check_trace(owner._pytree__info.trace, owner, "update")
    if isinstance(owner, list) or (isinstance(owner, List) and type(key) is int):
        check_index(owner, key, len(owner), path)
    journal.note_node(owner)
    set_key(owner, key, _new_child(value, is_new))


def _no_such_part(
    owner: Node, children: Mapping[Hashable, Value], link: Link, value: Mapping[Hashable, Value]
) -> GraphError:
    """The error for entries of a part that the graph does not have."""
    key = path_of(link)[-1]
    is_text = isinstance(key, str) and key.isdecimal() and int(key) in children
    return GraphError(
        "the state has entries for a part that the graph does not have",
        at=describe_path(path_of(link)),
        found=f"the entries {sorted(map(str, value))}",
        expected=f"the children of a {type(owner).__name__}: {', '.join(sorted(map(repr, children)))}",
        do="pass the state with integers as indices: plait.restore_int_paths(state)"
        if is_text
        else "pass a state of the same model; to add a module, assign it",
    )


def _is_part(value: Value) -> bool:
    """Whether an entry of a state represents a node: a mapping that is not empty."""
    return isinstance(value, Mapping) and not isinstance(value, Variable) and bool(value)


def _new_child(value: Value, is_new: bool) -> Value:
    """The child for an entry of a state. A new part becomes a dict of variables."""
    if isinstance(value, Variable):
        return value.copy()
    if not isinstance(value, Mapping):
        return value
    return {key: _new_child(child, True) for key, child in value.items()} if is_new and value else State(value)
