"""From a state to leaves: those of a nested mapping, in the walk order of a graphdef. (rule G29)

Keys are matched by path. Where the leaves of a graphdef stand is worked out once and kept on it; a state that is not
exactly that is matched entry by entry, which finds what does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

from ...errors import GraphError
from ...paths import describe_path, sorted_keys
from ..objects.variables import Variable
from .flatten import Link, path_of
from .graphdef import GraphDef, LeafAttribute, LeafDef, NodeDef, NodeRef, StaticAttribute, kept_on
from .plan import picker

_NO_LEAF: Any = object()


def leaves_in_order(graphdef: NodeDef, mapping: Mapping[Any, Any]) -> list[Any]:
    """The leaves of a nested mapping, one for each leaf definition of the graphdef.

    Raises:
        GraphError: a leaf is missing, unknown, or stands where a sub-graph belongs (or the reverse).
    """
    leaves = kept_on(graphdef, "_places", Places).find(mapping)
    return _matched(graphdef, mapping) if leaves is None else leaves


class Places:
    """Where the leaves of a graphdef stand in a nested mapping.

    Mappings are numbered, owners before what they own. Sub-graphs without leaves have no place.

    Attributes:
        mappings: (number of the owner, key) of each mapping but the first.
        owners: picks the mapping of each leaf.
        keys: of each leaf, in its mapping.
        sizes: how many entries each mapping has.
    """

    __slots__ = ("keys", "mappings", "owners", "sizes")

    def __init__(self, graphdef: GraphDef) -> None:
        self.mappings: list[tuple[int, Any]] = []
        self.sizes = [0]
        self.keys: list[Any] = []
        owners: list[int] = []
        # Frames are [entries, number, frame of the owner, key]; a mapping has no number until a leaf is met below it.
        frame: Any = [iter(graphdef.attributes), 0, None, None]  # type: ignore[attr-defined]
        while frame is not None:
            for entry in frame[0]:
                value = entry.value
                if type(entry) is StaticAttribute or type(value) is NodeRef:
                    continue
                if type(entry) is LeafAttribute:
                    owners.append(self._number(frame))
                    self.keys.append(entry.key)
                    self.sizes[frame[1]] += 1
                    continue
                frame = [iter(value.attributes), None, frame, entry.key]
                break
            else:
                frame = frame[2]
        self.owners = picker(owners)

    def _number(self, frame: Any) -> int:
        missing = []
        while frame[1] is None:
            missing.append(frame)
            frame = frame[2]
        for each in reversed(missing):
            _, _, owner, key = each
            each[1] = len(self.sizes)
            self.mappings.append((owner[1], key))
            self.sizes[owner[1]] += 1
            self.sizes.append(0)
        return (missing[0] if missing else frame)[1]

    def find(self, mapping: Mapping[Any, Any]) -> list[Any] | None:
        """The leaves, or ``None`` for a mapping that is not nested dicts with exactly these leaves."""
        if type(mapping) is not dict:
            return None
        mappings: list[dict[Any, Any]] = [mapping]
        add = mappings.append
        try:
            for owner, key in self.mappings:
                found = mappings[owner][key]
                if type(found) is not dict:
                    return None
                add(found)
            if [*map(len, mappings)] != self.sizes:
                return None
            leaves = [*map(getitem, self.owners(mappings), self.keys)]
        except KeyError:
            return None
        return None if any(issubclass(kind, Mapping) for kind in {*map(type, leaves)}) else leaves


def _matched(graphdef: GraphDef, mapping: Mapping[Any, Any]) -> list[Any]:
    """The same entry by entry: other mappings, sub-graphs without leaves that have an entry, and what does not fit."""
    leaves: list[Any] = []
    stack: list[tuple[Any, Any, Any, Link, int]] = []
    definition: Any = graphdef
    entries = iter(definition.attributes)
    link: Link = None
    used = 0
    while True:
        for entry in entries:
            kind = type(entry)
            key = entry.key
            if kind is StaticAttribute:
                if key in mapping:
                    raise _mismatch(
                        definition, (link, key), "a state entry for a static attribute", mapping[key], "no entry"
                    )
                continue
            value = entry.value
            if type(value) is NodeRef:
                continue
            found = mapping.get(key, _NO_LEAF)
            if kind is LeafAttribute:
                if found is _NO_LEAF:
                    raise _mismatch(definition, (link, key), "the state lacks a leaf", _NO_LEAF, _describe(value))
                if isinstance(found, Mapping) and type(value) is not LeafDef and not isinstance(found, Variable):
                    raise _mismatch(
                        definition, (link, key), "a mapping where a leaf is expected", found, _describe(value)
                    )
                used += 1
                leaves.append(found)
                continue
            if found is _NO_LEAF:
                if value.num_leaves == 0:
                    continue
                found = {}
            else:
                used += 1
                if not isinstance(found, Mapping):
                    raise _mismatch(
                        definition,
                        (link, key),
                        "a leaf where a subgraph is expected",
                        found,
                        f"the entries of a {_name(value)}",
                    )
            stack.append((definition, entries, mapping, link, used))
            definition, mapping, link, used = value, found, (link, key), 0
            entries = iter(definition.attributes)
            break
        else:
            if used != len(mapping):
                raise _unknown_entries(definition, mapping, link)
            if not stack:
                return leaves
            definition, entries, mapping, link, used = stack.pop()


def _name(definition: Any) -> str:
    return getattr(definition.type, "__name__", "array")


def _describe(definition: Any) -> str:
    return "an array" if isinstance(definition, LeafDef) else f"a {_name(definition)}"


def _mismatch(owner: NodeDef, link: Link, what: str, found: Any, expected: str) -> GraphError:
    shown = "nothing" if found is _NO_LEAF else f"a {type(found).__name__}: {found!r:.80}"
    return GraphError(
        f"the state does not fit the graphdef: {what}",
        at=f"{describe_path(path_of(link))} of a {_name(owner)}",
        found=shown,
        expected=expected,
        do="pass a state of the same model; missing parts can be added with State.merge(part, rest)",
    )


def _unknown_entries(definition: NodeDef, mapping: Mapping[Any, Any], link: Link) -> GraphError:
    known = {
        entry.key
        for entry in definition.attributes
        if not isinstance(entry, StaticAttribute) and type(entry.value) is not NodeRef
    }
    full = {entry.key for entry in definition.attributes if entry.key in known and entry.value.num_leaves}
    unknown = [describe_path(path_of((link, key))) for key in sorted_keys(mapping) if key not in known]
    return GraphError(
        "the state has entries that the graphdef does not know",
        at=", ".join(unknown),
        found=f"{len(unknown)} unknown path(s) under a {_name(definition)}",
        expected=f"only {sorted(map(str, full))}",
        do="pass the state of the same model, or filter it first",
    )
