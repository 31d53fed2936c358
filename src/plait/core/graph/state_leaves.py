"""The leaves of a nested mapping, in the walk order of a graphdef. (rule G29)

Keys are matched by path. The places of a graphdef's leaves are computed once and cached on it. A state that does not
have exactly these places is matched entry by entry, which finds the mismatch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from operator import getitem, ne, setitem
from typing import Any

from ...errors import ArgumentTypeError, GraphError
from ...typing import Tree, Value
from ...util.paths import describe_path, sorted_keys
from ...util.sentinels import NOTHING
from ...util.words import describe_type, with_article
from ..states.state import FlatState, State
from ..variables.cells import run_through
from ..variables.variables import Variable
from .graphdef import (
    GraphDef,
    LeafDef,
    Link,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
    cached_on,
    iter_places,
    path_of,
)
from .unflatten import picker


def nested_mapping(states: Sequence[Tree], operation: str) -> Mapping[Hashable, Value]:
    """States of any form as one nested mapping.

    Raises:
        ArgumentTypeError: names the operation and the type that is not a state.
    """
    for state in states:
        if not isinstance(state, (Mapping, FlatState)):
            raise ArgumentTypeError(
                f"{operation} takes states",
                found=describe_type(state),
                expected="a State, FlatState or nested dict",
                do="get one with plait.state(model) or plait.split(model)",
            )
    nested = [state.to_nested_state() if isinstance(state, FlatState) else state for state in states]
    whole = nested[0] if len(nested) == 1 else State.merge(*nested)
    return whole._mapping if isinstance(whole, State) else whole


def leaves_in_order(graphdef: NodeDef, mapping: Mapping[Hashable, Value]) -> list[Value]:
    """The leaves of a nested mapping, one for each leaf definition of the graphdef.

    Raises:
        GraphError: a leaf is missing or unknown, or there is a leaf in place of a sub-graph (or the reverse).
    """
    leaves = cached_on(graphdef, "_places", _places_of).find(mapping)
    return _matched(graphdef, mapping) if leaves is None else leaves


def _places_of(graphdef: GraphDef) -> Places:
    return Places([link for link, part in iter_places(graphdef) if isinstance(part, (VariableDef, LeafDef))])


class Places:
    """The positions of a graphdef's leaves, given by their links, in a nested mapping.

    Mappings are numbered, owners before their contents. Sub-graphs without leaves have no place.

    Attributes:
        mappings: (number of the owner, key) of each mapping except the first.
        owners: selects the mapping of each leaf.
        keys: the key of each leaf in its mapping.
        empty: each mapping with ``None`` in place of its values, in the order of the walk.
    """

    __slots__ = ("empty", "keys", "mappings", "owners")

    def __init__(self, links: list[Any]) -> None:
        self.mappings: list[tuple[int, Hashable]] = []
        self.empty: list[dict[Hashable, None]] = [{}]
        self.keys: list[Hashable] = []
        owners: list[int] = []
        numbers = {id(None): 0}  # of the mappings, by the links of their nodes, which the leaves' links keep alive
        for node, key in links:
            missing = []
            while id(node) not in numbers:
                missing.append(node)
                node = node[0]
            owner = numbers[id(node)]
            for node in reversed(missing):
                self.mappings.append((owner, node[1]))
                self.empty[owner][node[1]] = None
                self.empty.append({})
                owner = numbers[id(node)] = len(self.mappings)
            owners.append(owner)
            self.keys.append(key)
            self.empty[owner][key] = None
        self.owners = picker(owners)

    def find(self, mapping: Mapping[Hashable, Value]) -> list[Value] | None:
        """The leaves, or ``None`` if the mapping is not nested dicts with exactly these leaves."""
        if type(mapping) is not dict:
            return None
        mappings: list[dict[Hashable, Value]] = [mapping]
        add = mappings.append
        try:
            for owner, key in self.mappings:
                found = mappings[owner][key]
                if type(found) is not dict:
                    return None
                add(found)
            if any(map(ne, map(len, mappings), map(len, self.empty))):
                return None
            leaves = [*map(getitem, self.owners(mappings), self.keys)]
        except KeyError:
            return None
        return None if any(issubclass(kind, Mapping) for kind in {*map(type, leaves)}) else leaves


def nested_state(graphdef: GraphDef, links: list[Link], leaves: Sequence[Value]) -> State:
    """The nested state of the leaves of a walk, given with their links: the inverse of ``leaves_in_order``."""
    places = cached_on(graphdef, "_places", lambda _: Places(links))
    mappings = [*map(dict.copy, places.empty)]
    for (owner, key), mapping in zip(places.mappings, mappings[1:], strict=True):
        mappings[owner][key] = mapping
    run_through(map(setitem, places.owners(mappings), places.keys, leaves))
    return State(mappings[0], _copy=False)


def _matched(graphdef: NodeDef, mapping: Mapping[Hashable, Value]) -> list[Value]:
    """The same entry by entry, for other mappings, for entries of sub-graphs without leaves, and for mismatches."""
    leaves: list[Value] = []
    (root, _), *places = iter_places(graphdef)
    # Each node with leaves or an entry, by its link, with its entries.
    nodes: dict[int, tuple[NodeDef, Mapping[Hashable, Value], Link]] = {id(root): (graphdef, mapping, root)}
    for link, part in places:
        above, key = link  # type: ignore[misc]
        if id(above) not in nodes or isinstance(part, NodeRef):
            continue
        owner, entries, _ = nodes[id(above)]
        found = entries.get(key, NOTHING)
        if isinstance(part, StaticAttribute):
            if found is not NOTHING:
                raise mismatch(link, owner, "the state has an entry for a static attribute", found, "no entry")
        elif isinstance(part, NodeDef):
            if found is not NOTHING and not isinstance(found, Mapping):
                raise mismatch(
                    link, owner, "a leaf where a subgraph is expected", found, f"the entries of {_kind(part)}"
                )
            if found is not NOTHING or part.num_leaves:
                nodes[id(link)] = part, {} if found is NOTHING else found, link
        elif found is NOTHING:
            raise _lacks(link, owner, part)
        elif isinstance(found, Mapping) and not isinstance(part, LeafDef) and not isinstance(found, Variable):
            raise mismatch(link, owner, "a mapping where a leaf is expected", found, _kind(part))
        else:
            leaves.append(found)
    for definition, entries, link in nodes.values():
        _check_known(definition, entries, link)
    return leaves


def mismatch(link: Link, owner: object, what: str, found: object, expected: str) -> GraphError:
    """The error of a state whose entry does not match its owner, which is a node or its definition."""
    return GraphError(
        f"the state does not match the {'graphdef' if isinstance(owner, GraphDef) else 'graph'}: {what}",
        at=f"{describe_path(path_of(link))} of {_kind(owner)}",
        found=f"{describe_type(found)}: {found!r:.80}",
        expected=expected,
        do="pass a state of the same model",
    )


def _lacks(link: Link, owner: NodeDef, part: object) -> GraphError:
    return GraphError(
        "Incorrect number of leaves: the state lacks a leaf of the graphdef",
        at=f"{describe_path(path_of(link))} of {_kind(owner)}",
        found="nothing",
        expected=_kind(part),
        do="pass a state of the same model; add missing parts with State.merge(part, rest)",
    )


def _kind(part: object) -> str:
    if not isinstance(part, GraphDef):
        return describe_type(part)
    return with_article("array" if part.type is None else part.type.__name__)


def _check_known(definition: NodeDef, mapping: Mapping[Hashable, Value], link: Link) -> None:
    children = [entry for entry in definition.attributes if not isinstance(entry, StaticAttribute)]
    known = {entry.key: entry.value for entry in children if not isinstance(entry.value, NodeRef)}
    unknown = [key for key in mapping if key not in known]
    if unknown:
        raise GraphError(
            "Incorrect number of leaves: the state has entries that the graphdef does not have",
            at=", ".join(describe_path(path_of((link, key))) for key in sorted_keys(unknown)),
            found=f"{len(unknown)} unknown path(s) under {_kind(definition)}",
            expected=f"only {sorted(str(key) for key, part in known.items() if part.num_leaves)}",
            do="pass a state of the same model, or filter it first",
        )
