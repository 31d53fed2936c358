"""Trees of states: the building blocks of user-defined transforms. (rules U24, X28)

``to_tree`` replaces every module and variable of a pytree by its ``NodeStates``, which JAX takes as a pytree of arrays
with static structure; ``from_tree`` puts them back. With the tag of an update context, the two perform the four steps
of a crossing, so the caller's own objects are changed. plait's own transforms use the narrower ``transforms/call``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax

from ...core.graph.graphdef import GraphDef
from ...core.graph.walks import is_graph_leaf
from ...core.transform import Transformation
from ...core.variables.variables import Variable
from ...errors import GraphError
from ...transforms.call.prefixes import Prefix, check_aliasing
from .update_context import MergeContext, SplitContext, merge_context, split_context

TO_TREE, FROM_TREE = Transformation("to_tree"), Transformation("from_tree")


class _Missing:
    """Represents a prefix that was not given."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NodeStates:
    """One object of a tree as JAX takes it: a graphdef, one state for each group of variables, and static metadata.

    Attributes:
        states: the states.
        metadata: any hashable value, for the transform's own use.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> node = plait.NodeStates.from_split(*plait.split(model, plait.PathContains("kernel"), ...), metadata="mine")
        >>> [list(state) for state in node.states], node.metadata
        ([['kernel'], ['bias']], 'mine')
    """

    _graphdef: GraphDef | None
    states: tuple[Any, ...]
    metadata: Any = dataclasses.field(default=None, metadata={"static": True})

    @classmethod
    def from_split(cls, graphdef: GraphDef | None, state: Any, /, *states: Any, metadata: Any = None) -> NodeStates:
        """From what ``plait.split`` returns."""
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, *states: Any) -> NodeStates:
        """From states alone; there is no graphdef."""
        return cls(None, (state, *states))

    @classmethod
    def from_prefixes(cls, prefixes: Iterable[Any], /, *, metadata: Any = None) -> NodeStates:
        """A prefix of other ``NodeStates``, with a value for each state, such as axes for ``jax.vmap``."""
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef:
        """The graphdef.

        Raises:
            GraphError: there is no graphdef.
        """
        if self._graphdef is None:
            raise GraphError(
                "these NodeStates have no graphdef",
                found="states alone",
                expected="the result of from_split",
                do="create them with plait.NodeStates.from_split(graphdef, state)",
            )
        return self._graphdef

    @property
    def state(self) -> Any:
        """The only state.

        Raises:
            GraphError: there are several.
        """
        if len(self.states) != 1:
            raise GraphError(
                "these NodeStates have no single state",
                found=f"{len(self.states)} states",
                expected="one",
                do="use nodes.states, the tuple of all states",
            )
        return self.states[0]

    def replace(self, **changes: Any) -> NodeStates:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def split_node(context: SplitContext, path: Any, prefix: Any, leaf: Any) -> Any:
    """The default of ``to_tree``: one state for an object; a plain leaf is unchanged."""
    return NodeStates.from_split(*context.split(leaf)) if is_graph_leaf(leaf) else leaf


def merge_node(context: MergeContext, path: Any, prefix: Any, leaf: Any) -> Any:
    """The default of ``from_tree``: the object of ``NodeStates``; a plain leaf is unchanged."""
    return context.merge(leaf.graphdef, *leaf.states) if isinstance(leaf, NodeStates) else leaf


def is_node_states(x: Any) -> bool:
    """Whether ``x`` is a ``NodeStates``."""
    return isinstance(x, NodeStates)


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = _Missing,
    split_fn: Callable[[SplitContext, Any, Any, Any], Any] = split_node,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable | None = None,
    check_aliasing: bool = True,
) -> Any:
    """Replace the modules and variables of a pytree by ``NodeStates``.

    All of them are split with one index, so an object that has two paths is one object again after ``from_tree``.

    Args:
        tree: arguments or outputs: a pytree that holds objects.
        prefix: a prefix of the tree with values for ``split_fn``: axes, specs, ``StateAxes``.
        split_fn: ``(context, path, prefix, object) -> leaf``: splits an object. Default: ``context.split`` into one
            state.
        map_non_graph_nodes: whether ``split_fn`` is also called for plain leaves.
        ctxtag: the tag of the active update context that this is a step of.
        check_aliasing: whether to raise for a variable with two different prefixes.

    Raises:
        SharingError: a variable has two different prefixes; the error names both paths.

    Example:
        >>> def my_jit(f):
        ...     @jax.jit
        ...     def pure(tree):
        ...         args = plait.from_tree(tree, is_inner=True, ctxtag="my_jit")
        ...         out = f(*args)
        ...         return plait.to_tree((args, out), ctxtag="my_jit")
        ...     @plait.update_context("my_jit")
        ...     def wrapper(*args):
        ...         tree = pure(plait.to_tree(args, ctxtag="my_jit"))
        ...         _, out = plait.from_tree(tree, is_inner=False, ctxtag="my_jit")
        ...         return out
        ...     return wrapper
        >>> class Counter(plait.Module):
        ...     def __init__(self):
        ...         self.count = plait.Variable(jnp.zeros((), jnp.int32))
        >>> @my_jit
        ... def step(counter):
        ...     counter.count += 1
        ...     counter.last = plait.Variable(counter.count * 10)
        ...     return counter
        >>> counter = Counter()
        >>> step(counter) is counter, int(counter.count), int(counter.last)
        (True, 1, 10)
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_graph_leaf)
    prefixes = _spread(TO_TREE, prefix, tree)
    if check_aliasing and prefix is not _Missing:
        _check_aliasing(pairs, prefixes)
    with split_context(ctxtag) as context:
        leaves = [
            split_fn(context, path, value, leaf) if map_non_graph_nodes or is_graph_leaf(leaf) else leaf
            for (path, leaf), value in zip(pairs, prefixes, strict=True)
        ]
    return jax.tree_util.tree_unflatten(treedef, leaves)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = _Missing,
    merge_fn: Callable[[MergeContext, Any, Any, Any], Any] = merge_node,
    is_node_leaf: Callable[[Any], bool] = is_node_states,
    is_leaf: Callable[[Any], bool] = is_node_states,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable | None = None,
) -> Any:
    """Replace the ``NodeStates`` of a pytree by modules and variables: the inverse of ``to_tree``.

    Args:
        tree: the result of ``to_tree``, or what a transform made from it.
        prefix: a prefix of the tree with values for ``merge_fn``.
        merge_fn: ``(context, path, prefix, leaf) -> object``; by default ``context.merge``.
        is_node_leaf: the leaves for which ``merge_fn`` is called.
        is_leaf: what counts as a leaf.
        map_non_graph_nodes: whether ``merge_fn`` is called for all leaves.
        is_inner: with a tag, whether this is the merge inside the transform, which makes private objects, or the one
            outside, which changes the caller's own; ``None`` reads it from the graphdefs.
        ctxtag: the tag of the active update context that this is a step of.

    Raises:
        TraceContextError: an object of the caller that would change belongs to a different trace.

    Example:
        >>> linear = plait.Linear(2, 2, rngs=plait.Rngs(0))
        >>> tree = plait.to_tree({"model": linear, "kernel": linear.kernel, "x": 1.0})
        >>> copy = plait.from_tree(tree)
        >>> copy["model"] is linear, copy["kernel"] is copy["model"].kernel, copy["x"]
        (False, True, 1.0)
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    stand_ins = [Variable(0) if is_node_leaf(leaf) else 0 for _, leaf in pairs]  # a mapping by filter may be here
    prefixes = _spread(FROM_TREE, prefix, jax.tree_util.tree_unflatten(treedef, stand_ins))
    with merge_context(ctxtag, is_inner) as context:
        leaves = [
            merge_fn(context, path, value, leaf) if map_non_graph_nodes or is_node_leaf(leaf) else leaf
            for (path, leaf), value in zip(pairs, prefixes, strict=True)
        ]
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _spread(name: Transformation, prefix: Any, tree: Any) -> list[Any]:
    if prefix is _Missing:
        return [_Missing] * len(jax.tree_util.tree_leaves(tree, is_leaf=is_graph_leaf))
    return Prefix.of(name, "prefix", prefix, updates=True).broadcast(tree)


def _check_aliasing(pairs: Any, prefixes: list[Any]) -> None:
    treatments = [
        (jax.tree_util.keystr(path) or "the tree", leaf, value)
        for (path, leaf), value in zip(pairs, prefixes, strict=True)
        if is_graph_leaf(leaf)
    ]
    check_aliasing("to_tree", treatments, {})
