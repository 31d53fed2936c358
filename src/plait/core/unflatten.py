"""The second of the two walks: from a graphdef and its leaves back to an object graph.

Graph nodes are created empty, entered in the index table, and filled after their children, so a child may point back
to an ancestor. Pytree nodes are built after their children. With a cache (index → existing object) graph nodes are
emptied and refilled in place and variables are written in place, which is how a crossing changes the caller's own
objects. (rules G25 to G30)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._compat import is_mutable_array, trace_state
from ..errors import GraphError, RegistryError
from ..paths import describe_path, sorted_keys
from .flatten import Link, path_of
from .graphdef import (
    GraphDef,
    LeafAttribute,
    LeafDef,
    NodeDef,
    NodeRef,
    StaticAttribute,
    VariableDef,
)
from .nodes import GRAPH_REGISTRY, GraphNodeImpl, PytreeNodeImpl, StaticElem, get_node_impl_for_type
from .variables import Variable, dict_of, make_variable

_NO_LEAF: Any = object()
# What a step-4 merge passes for a leaf of the caller's own that the transformed function did not write.
UNTOUCHED: Any = type("Untouched", (), {"__repr__": lambda self: "<untouched>"})()


class Builder:
    """Builds graphs that share one index table.

    Args:
        index_ref: index → object, filled while building.
        cache: index → existing object to reuse.
        make_leaf: ``(VariableDef, leaf) -> object`` for variables that are not in the cache.
    """

    def __init__(
        self,
        index_ref: dict[int, Any] | None = None,
        cache: Mapping[int, Any] | None = None,
        make_leaf: Callable[[VariableDef, Any], Any] | None = None,
    ) -> None:
        self.index_ref = {} if index_ref is None else index_ref
        self.cache = cache or {}
        self.make_leaf = make_leaf or own_variable
        self.check_cache = bool(cache)

    def build(self, graphdef: GraphDef, leaves: Sequence[Any]) -> Any:
        """The graph of ``graphdef`` around ``leaves``, one for each of its leaf definitions in walk order.

        Raises:
            GraphError: another number of leaves, or a cached object of another type.
        """
        if graphdef.num_leaves != len(leaves):
            raise GraphError(
                "the number of leaves does not fit the graphdef",
                found=f"{len(leaves)} leaves",
                expected=f"{graphdef.num_leaves}",
                do="pass the leaves that flatten gave for this graphdef",
            )
        supply = iter(leaves)
        if not isinstance(graphdef, NodeDef):
            return self._leaf(graphdef, supply)
        return self._node(graphdef, supply)

    def _leaf(self, part: GraphDef, supply: Any) -> Any:
        definition: Any = part
        if type(part) is NodeRef:
            try:
                return self.index_ref[definition.index]
            except KeyError:
                raise GraphError(
                    "a back-reference leads to nothing that was built before",
                    found=f"index {definition.index} of type {definition.type.__name__}",
                    expected=f"one of the indices {sorted(self.index_ref)}",
                    do="merge the roots in the order in which they were split, under one context",
                ) from None
        leaf = next(supply)
        if type(definition) is LeafDef:
            index = definition.index
            if index is None:
                return leaf
            cached = self.cache.get(index)
            if cached is not None and leaf is not cached and leaf is not UNTOUCHED:
                cached[...] = leaf[...] if is_mutable_array(leaf) else leaf
            leaf = leaf if cached is None else cached
            self.index_ref[index] = leaf
            return leaf
        index = definition.index
        cached = self.cache.get(index) if self.check_cache else None
        if cached is not None:
            result = write_cached_variable(cached, definition, leaf)
        else:
            result = self.make_leaf(definition, leaf)
        self.index_ref[index] = result
        return result

    def _start(self, definition: NodeDef) -> Any:
        """The empty graph node, in the index table before its children are built."""
        index = definition.index
        if index in self.index_ref:
            raise RegistryError(
                "an index of the graphdef is already in the index table",
                found=f"index {index} of type {definition.type.__name__}",
                expected="an index that was not built before",
                do="use a fresh index_ref, or merge all roots under one context",
            )
        impl = GRAPH_REGISTRY[definition.type]
        node = self.cache.get(index) if self.check_cache else None  # type: ignore[arg-type]
        if node is None:
            node = impl.create_empty(definition.metadata)
        elif type(node) is not definition.type:
            raise GraphError(
                "a cached object has another type than the graphdef says",
                at=f"index {index}",
                found=f"a {type(node).__name__}",
                expected=f"a {definition.type.__name__}",
                do="this is a bug in plait unless you passed the cache yourself",
            )
        else:
            impl.clear(node)
        self.index_ref[index] = node  # type: ignore[index]
        return node

    def _node(self, root: NodeDef, supply: Any) -> Any:
        stack: list[Any] = []
        definition: Any = root
        node = self._begin(root)
        children: list[tuple[Any, Any]] = []
        entries = iter(root.attributes)
        key_in_parent: Any = None
        while True:
            for entry in entries:
                kind = type(entry)
                if kind is LeafAttribute:
                    children.append((entry.key, self._leaf(entry.value, supply)))
                elif kind is StaticAttribute:
                    children.append((entry.key, entry.value))
                elif type(entry.value) is NodeRef:
                    children.append((entry.key, self._leaf(entry.value, supply)))
                else:
                    stack.append((definition, node, children, entries, key_in_parent))
                    definition, children, key_in_parent = entry.value, [], entry.key
                    node = self._begin(definition)
                    entries = iter(definition.attributes)
                    break
            else:
                result = self._finish(definition, node, children)
                if not stack:
                    return result
                key = key_in_parent
                definition, node, children, entries, key_in_parent = stack.pop()
                children.append((key, result))

    def _begin(self, definition: NodeDef) -> Any:
        return None if definition.index is None else self._start(definition)

    def _finish(self, definition: NodeDef, node: Any, children: list[tuple[Any, Any]]) -> Any:
        impl = get_node_impl_for_type(definition.type)
        if isinstance(impl, PytreeNodeImpl):
            return impl.unflatten(children, definition.metadata)
        assert isinstance(impl, GraphNodeImpl), "a graphdef of an unregistered type; this is a bug in plait"
        impl.init(node, children)
        return node


def own_variable(definition: VariableDef, leaf: Any) -> Any:
    """A variable of the current trace from a leaf that no one else holds: adopted, or made around a raw value."""
    if isinstance(leaf, Variable):
        return leaf
    return make_variable(definition.type, leaf, dict_of(definition.metadata), trace_state.value)


def copied_variable(definition: VariableDef, leaf: Any) -> Any:
    """A new variable of the current trace, whatever the leaf is."""
    if isinstance(leaf, Variable):
        return leaf.copy()
    return make_variable(definition.type, leaf, dict_of(definition.metadata), trace_state.value)


def raw_leaf(definition: VariableDef, leaf: Any) -> Any:
    """The leaf as it is."""
    return leaf


def write_cached_variable(cached: Any, definition: VariableDef, leaf: Any) -> Any:
    """Write a leaf into an existing variable.

    Raises:
        GraphError: what is cached is no variable of the recorded class.
    """
    if not isinstance(cached, Variable) or type(cached) is not definition.type:
        raise GraphError(
            "Expected a Variable in the cache"
            if not isinstance(cached, Variable)
            else "a cached variable has another type",
            at=f"index {definition.index}",
            found=f"a {type(cached).__name__}",
            expected=f"a Variable of class {definition.type.__name__}",
            do="this is a bug in plait unless you passed the cache yourself",
        )
    if isinstance(leaf, Variable):
        cached.update_from_state(leaf)
        return cached
    if leaf is not UNTOUCHED:
        if cached._cell.metadata["ref"]:
            cached._cell.raw[...] = leaf
        else:
            cached._cell.raw = leaf
    if definition.metadata != cached.get_metadata():
        cached.update_from_state(make_variable(definition.type, cached._cell.raw, dict_of(definition.metadata), None))
    return cached


def leaves_in_order(graphdef: GraphDef, mapping: Mapping[Any, Any]) -> list[Any]:
    """The leaves of a nested mapping in the walk order of a graphdef; keys are matched by path. (rule G29)

    Raises:
        GraphError: a leaf is missing, unknown, or stands where a sub-graph belongs (or the reverse).
    """
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
    unknown = [describe_path(path_of((link, key))) for key in sorted_keys(mapping) if key not in known]
    return GraphError(
        "the state has entries that the graphdef does not know",
        at=", ".join(unknown),
        found=f"{len(unknown)} unknown path(s) under a {_name(definition)}",
        expected=f"only {sorted(map(str, known))}",
        do="pass the state of the same model, or filter it first",
    )


__all__ = ["UNTOUCHED", "Builder", "StaticElem", "copied_variable", "leaves_in_order", "own_variable", "raw_leaf"]
