"""A graphdef and a state in one value. (rule G46)"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, TypeVar

import jax
from jax.tree_util import DictKey, GetAttrKey

from ...errors import GraphError
from ...typing import FilterLiteral, Node, Tree, Value
from ..functional.merge import Bundle
from ..functional.split import split
from ..graph.graphdef import GraphDef
from .state import State, tree_entries, tree_state

N = TypeVar("N")

# What `pure` and `split` return; Flax names it in signatures.
PureState = tuple[GraphDef[N], State]


class GraphState(MutableMapping[Any, Any], Bundle):
    """A graphdef and a state in one value: a mapping like the state, and a pytree of the state's leaves.

    Example:
        >>> bundle = plait.unpack(plait.Linear(2, 3, rngs=plait.Rngs(0)))
        >>> bundle.kernel.shape, list(bundle)
        ((2, 3), ['bias', 'kernel'])
    """

    __slots__ = ("graphdef", "state")

    graphdef: GraphDef
    state: State

    def __init__(self, graphdef: GraphDef, state: State) -> None:
        object.__setattr__(self, "graphdef", graphdef)
        object.__setattr__(self, "state", state)

    def opened(self, others: Iterable[Tree]) -> tuple[Tree, ...]:
        """
        Raises:
            GraphError: the graph states have different graphdefs.
        """
        others = [*others]
        if any(not isinstance(each, GraphState) or each.graphdef != self.graphdef for each in others):
            raise GraphError(
                "the graph states have different graphdefs",
                found=f"{1 + len(others)} graph states",
                expected="equal graphdefs",
                do="merge only graph states that one call of unpack returned",
            )
        return self.graphdef, self.state, *(each.state for each in others)

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Value) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __iter__(self) -> Any:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in GraphState.__slots__:
            raise AttributeError(name)
        return getattr(self.state, name)

    def __setattr__(self, name: str, value: Value) -> None:
        if name in GraphState.__slots__:
            object.__setattr__(self, name, value)
        else:
            self.state[name] = value

    def __delattr__(self, name: str) -> None:
        del self.state[name]

    def __reduce__(self) -> tuple[object, ...]:
        return GraphState, (self.graphdef, self.state)

    def __repr__(self) -> str:
        return f"GraphState({self.graphdef!r}, {self.state!r})"


# The state of a graph is flattened here, so that paths start inside it. The state of a variable is the variable.


def _flatten(bundle: GraphState) -> Any:
    state = bundle.state
    if not isinstance(state, State):
        return ((GetAttrKey("state"), state),), (bundle.graphdef, None, None)
    keys, values = tree_entries(state)
    return [*zip(map(DictKey, keys), values, strict=True)], (bundle.graphdef, type(state), tuple(keys))


def _unflatten(aux: tuple[GraphDef, type[State] | None, Any], children: Iterable[Value]) -> GraphState:
    graphdef, kind, keys = aux
    if kind is None:
        return GraphState(graphdef, *children)
    return GraphState(graphdef, tree_state(kind, keys, children))


jax.tree_util.register_pytree_with_keys(GraphState, _flatten, _unflatten)


def unpack(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Any:
    """One ``GraphState`` per filter; without filters, one for the whole graph.

    Args:
        graph: as in ``split``.
    """
    return bundled(*split(node, *filters, graph=graph))


def bundled(graphdef: GraphDef, *states: Tree) -> Any:
    """A ``GraphState`` for each state; for one state, it alone."""
    bundles = tuple(GraphState(graphdef, each) for each in states)
    return bundles[0] if len(bundles) == 1 else bundles
