"""Live states: under ``live_states``, states hold the model's own variables, as Flax's do. (rule X33)

The heart knows nothing of it: each public function here chooses, in every call, between the heart's and a live one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ...typing import FilterLiteral, Node, Tree, Value
from ...util.paths import Path
from ..functional import merge as merging, split as splitting
from ..graph.graphdef import GraphDef
from ..graph.modes import check_mode
from ..graph.walks import RefMap, Walk, path_of
from ..nodes.nodes import check_node
from ..settings import Restoring, Settings, declared, set_default
from . import flat_graphs, graph_state, proxy_caller

P = ParamSpec("P")
R = TypeVar("R")


class _Live(Settings):
    on: bool = False


_live = declared("live states", _Live())


def live_states(value: bool = True, /) -> Restoring:
    """Whether states hold the model's own variables in this thread or task, as Flax's do (default ``False``).

    With live states, ``split``, ``state``, ``flatten``, ``unpack`` and ``pop`` return the variables themselves,
    ``merge`` puts a state's variables into its result, and ``map`` keeps those that its function returns. So writing to
    a state writes to the model. ``plait.as_flax`` turns it on for all threads.

    Takes effect immediately; as a context manager or decorator it restores the previous setting.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> with plait.compat.live_states():
        ...     plait.state(model)["kernel"] is model.kernel, plait.merge(*plait.split(model)).kernel is model.kernel
        (True, True)
        >>> plait.state(model)["kernel"] is model.kernel
        False
    """
    return Restoring(_live, on=bool(value))


def are_live() -> bool:
    """Whether states of this thread are live."""
    return _live.on


def make_default() -> None:
    """Turn live states on in all threads that have not set them."""
    set_default(_live, "on", True)


def or_live(live: Callable[..., Tree], detached: Callable[P, R]) -> Callable[P, R]:
    """The public form of a function: the one or the other, by the setting of the thread."""

    @functools.wraps(detached)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        return live(*args, **kwargs) if _live.on else detached(*args, **kwargs)

    public.__module__ = live.__module__  # where it is found again by pickle
    return public


def itself(leaf: Value) -> Value:
    return leaf


def _states(node: Node, filters: tuple[FilterLiteral, ...], *, exhaustive: bool) -> tuple[GraphDef, list[Tree]]:
    walk = Walk()
    root = walk.add(node)

    def paths() -> tuple[Path, ...]:
        return tuple([path_of(link) for link in walk.links])

    return root, splitting.states_of(root, walk.links, paths, walk.leaves, filters, exhaustive=exhaustive)


def _split(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Any:
    check_mode(node, graph)
    root, states = _states(node, filters, exhaustive=True)
    return (root, *states)


def _state(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Tree:
    check_mode(node, graph)
    check_node(node, "state")
    _, states = _states(node, filters, exhaustive=False)
    return states[0] if len(states) == 1 else tuple(states)


def _unpack(node: Node, *filters: FilterLiteral, graph: bool | None = None) -> Any:
    return graph_state.bundled(*_split(node, *filters, graph=graph))


def _flatten(
    node: Node, /, ref_index: RefMap | None = None, *, with_paths: bool = True, graph: bool | None = None
) -> Any:
    check_mode(node, graph)
    return flat_graphs.flattened(flat_graphs.root_of(node), ref_index, with_paths=with_paths, leaf_of=itself)


def _merge(
    graphdef: Any, state: Tree = None, /, *states: Tree, copy: bool = False, recreate_variables: bool = True
) -> Any:
    return merging.merge(graphdef, state, *states, copy=copy, recreate_variables=recreate_variables)


def _apply(graphdef: GraphDef, state: Tree, *states: Tree, graph: bool | None = None) -> Any:
    return proxy_caller.proxied(lambda: _merge(graphdef, state, *states), _split)


def _call(graphdef_state: tuple[GraphDef, Tree], /) -> Any:
    return _apply(*graphdef_state)


if TYPE_CHECKING:  # their definitions
    from ..functional.merge import merge
    from ..functional.split import split, state
    from .flat_graphs import flatten
    from .graph_state import unpack
    from .proxy_caller import call
else:
    split = or_live(_split, splitting.split)
    state = or_live(_state, splitting.state)
    merge = or_live(_merge, merging.merge)
    unpack = or_live(_unpack, graph_state.unpack)
    flatten = or_live(_flatten, flat_graphs.flatten)
    call = or_live(_call, proxy_caller.call)
GraphDef.apply = or_live(_apply, proxy_caller.apply)  # type: ignore[attr-defined]
