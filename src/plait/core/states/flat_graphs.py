"""``flatten`` and ``unflatten``: a graph as a graphdef and flat leaves, with indices that the caller keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ...errors import RegistryError
from ...typing import Node, Tree, Value
from ..functional.merge import leaves_of
from ..functional.split import detached
from ..graph.graphdef import GraphDef
from ..graph.modes import check_mode
from ..graph.unflatten import Builder, copied_variables, own_variables, raw_leaves
from ..graph.walks import RefMap, Walk, path_of
from ..nodes.journal import Journal
from ..nodes.nodes import Kind, kind_of, not_a_node
from ..variables.variables import Variable
from .state import FlatState

N = TypeVar("N")


def flatten(
    node: N, /, ref_index: RefMap | None = None, *, with_paths: bool = True, graph: bool | None = None
) -> tuple[GraphDef[N], Tree]:
    """A graph as its graphdef and its leaves in walk order.

    Args:
        node: the root.
        ref_index: indices shared by several calls; objects from an earlier call become back-references.
        with_paths: whether to return the leaves as a ``FlatState`` of detached variables; otherwise they are a list of
            raw values.
        graph: as in ``split``.

    Raises:
        RegistryError: the root is not a node.
    """
    check_mode(node, graph)
    return flattened(root_of(node), ref_index, with_paths=with_paths)


def root_of(node: Node) -> Node:
    """The root, if it is one.

    Raises:
        RegistryError: it is not a node.
    """
    if kind_of(node) is Kind.STATIC:
        raise not_a_node(RegistryError, node, "flatten")
    return node


def flattened(
    node: Node, refs: RefMap | None, *, with_paths: bool, leaf_of: Callable[[Value], Value] = detached
) -> tuple[GraphDef, Tree]:
    """The same for a root of any kind, with ``leaf_of(leaf)`` in the flat state."""
    walk = Walk(refs)
    graphdef = walk.add(node)
    if not with_paths:
        return graphdef, [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    leaves = [leaf_of(leaf) for leaf in walk.leaves]
    return graphdef, FlatState.from_sorted_keys_values(tuple(map(path_of, walk.links)), leaves)


def unflatten(
    graphdef: GraphDef[N],
    state: Tree,
    /,
    *,
    index_ref: dict[int, Node] | None = None,
    index_ref_cache: Mapping[int, Node] | None = None,
    outer_index_outer_ref: Mapping[int, Node] | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> N:
    """Build the graph of a graphdef from the leaves of a state.

    Args:
        state: a ``State``, nested mapping, ``FlatState``, or a list of leaves in walk order.
        index_ref: index → object, filled while building; shared by several calls.
        index_ref_cache: index → existing object to reuse (also called ``outer_index_outer_ref``).
        copy_variables: whether the result gets new variables instead of the state's.
        recreate_variables: whether to create variables for raw values; ``False`` keeps the raw values.

    Raises:
        GraphError: the state does not match the graphdef; the message names the paths.
        TraceContextError: a reused object would be changed and belongs to a different trace.

    If it raises, the reused objects are as before.
    """
    make_variables = copied_variables if copy_variables else own_variables if recreate_variables else raw_leaves
    with Journal() as journal:
        builder = Builder(index_ref, index_ref_cache or outer_index_outer_ref, make_variables, journal)
        return builder.build(graphdef, leaves_of(graphdef, state))
