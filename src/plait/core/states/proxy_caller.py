"""Calling a method of a split graph: merge, call, split."""

# Rules G18, G43 to G45.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

from jax.tree_util import register_static

from ...typing import Node, Tree
from ..functional.merge import merge
from ..functional.split import split
from ..graph.graphdef import GraphDef


@register_static
@dataclasses.dataclass(frozen=True)
class DelayedAccessor:
    """A record of attribute and item accesses, applied to an object later."""

    accesses: tuple[tuple[str, Any], ...] = ()

    def __call__(self, root: Node) -> Node:
        for kind, key in self.accesses:
            root = getattr(root, key) if kind == "attribute" else root[key]
        return root

    def attribute(self, name: str) -> DelayedAccessor:
        """The record with one more attribute access."""
        return DelayedAccessor((*self.accesses, ("attribute", name)))

    def item(self, key: Hashable) -> DelayedAccessor:
        """The record with one more item access."""
        return DelayedAccessor((*self.accesses, ("item", key)))


class CallableProxy:
    """A proxy for an object: attribute and item access select a part, a call runs
    ``run(accessor, *args, **kwargs)``."""

    __slots__ = ("_accessor", "_run")

    def __init__(self, run: Callable[..., Tree], accessor: DelayedAccessor | None = None) -> None:
        self._run = run
        self._accessor = DelayedAccessor() if accessor is None else accessor

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        return self._run(self._accessor, *args, **kwargs)

    def __getattr__(self, name: str) -> CallableProxy:
        if name.startswith("__"):
            raise AttributeError(name)
        return CallableProxy(self._run, self._accessor.attribute(name))

    def __getitem__(self, key: Hashable) -> CallableProxy:
        return CallableProxy(self._run, self._accessor.item(key))

    def __repr__(self) -> str:
        return f"CallableProxy({self._accessor!r})"


def call(graphdef_state: tuple[GraphDef, Tree], /) -> Any:
    """A proxy that merges, calls, and splits again.

    Args:
        graphdef_state: the pair that ``split`` returned.

    Returns:
        ``proxy(*args, **kwargs)`` returns ``(out, (graphdef, state))`` with all changes; ``proxy.name`` and
        ``proxy[key]`` select a method or part first.

    Example:
        >>> pair = plait.split(plait.Linear(2, 3, rngs=plait.Rngs(0)))
        >>> out, (graphdef, state) = plait.call(pair)(jnp.ones((1, 2)))
        >>> out.shape, list(state)
        ((1, 3), ['bias', 'kernel'])
    """
    return apply(*graphdef_state)


def apply(graphdef: GraphDef, state: Tree, *states: Tree, graph: bool | None = None) -> Any:
    """``GraphDef.apply``: like ``call``, for a graphdef and its states; ``graph`` has no effect."""
    return proxied(lambda: merge(graphdef, state, *states), split)


def proxied(make: Callable[[], Node], split: Callable[..., Tree]) -> CallableProxy:
    """A proxy whose call makes an object, calls a part of it, and returns the output and the object, split."""

    def run(accessor: DelayedAccessor, *args: Any, **kwargs: Any) -> Tree:
        node = make()
        out = accessor(node)(*args, **kwargs)
        return out, split(node, graph=True)

    return CallableProxy(run)


GraphDef.apply = apply  # type: ignore[attr-defined]

__dir__ = "CallableProxy DelayedAccessor apply call".split
