"""The objects of a graph with all their places, so that they can be replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..core.nodes.nodes import GRAPH_REGISTRY, Kind, Place, has_identity, pytree_impl, visit
from ..core.nodes.pytree import Pytree
from ..errors import GraphError
from ..util.paths import Path


class Part:
    """An object of a graph with all its places; numbers, strings and ``None`` are a separate part at each place.

    Attributes:
        value: the object.
        places: (owning part, key) of each place; empty for the root.
        paths: the path of each place; ``()`` for the root.
    """

    def __init__(self, value: Any, places: list[tuple[Part, Any]], paths: list[Path]) -> None:
        self.value, self.places, self.paths = value, places, paths
        self.node = value  # the current object: immutable nodes are rebuilt with each change

    def put(self, value: Any) -> Part:
        """Put a different object in all places; returns the new part."""
        if value is not self.value:
            for owner, key in self.places:
                owner.put_child(key, value)
        return Part(value, self.places, self.paths)

    def put_child(self, key: Any, value: Any) -> None:
        node: Any = self.node
        if isinstance(node, Pytree) and isinstance(key, str) and not isinstance(node, Mapping):
            setattr(node, key, value)
        elif hasattr(node, "__setitem__"):
            cast("Any", node)[key] = value
        elif type(node) in GRAPH_REGISTRY:
            GRAPH_REGISTRY[type(node)].set_key(node, key, value)
        else:
            impl = pytree_impl(type(node))
            children, metadata = impl.flatten(node)
            self.node = impl.unflatten([(k, value if k == key else child) for k, child in children], metadata)
            if not self.places:
                raise GraphError(
                    f"the root is an immutable {type(node).__name__}, which cannot be changed in place",
                    found=f"a change at {key!r}",
                    expected="a module, list or dict as the root",
                    do="select in the modules that it contains",
                )
            for owner, place in self.places:
                owner.put_child(place, self.node)


def parts_of(model: Any) -> list[Part]:
    """Every object of a graph, owners first."""
    parts: dict[Place, Part] = {}
    for place in visit(model, is_shared=_is_one_part):
        part = parts.setdefault(place.first or place, Part(place.value, [], []))
        part.paths.append(place.path)
        if place.owner is not None:
            part.places.append((parts[place.owner], place.key))
    return list(parts.values())


def _is_one_part(value: Any, kind: Kind) -> bool:
    return has_identity(value, kind) or kind is Kind.ARRAY or isinstance(value, (list, dict))
