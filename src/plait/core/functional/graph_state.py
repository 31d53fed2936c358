"""A graphdef and a state in one value. (rule G46)"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import jax

from ..graph.graphdef import GraphDef
from ..objects.state import State


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
