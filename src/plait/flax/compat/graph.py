"""The namespace ``plait.graph``: everything about graphs that users need, low-level names included."""

from __future__ import annotations

from ...core.functional.merge import clone as clone
from ...core.functional.split import graphdef as graphdef
from ...core.functional.update import update as update
from ...core.graph.graphdef import (
    GraphDef as GraphDef,
    LeafAttribute as LeafAttribute,
    NodeDef as NodeDef,
    NodeRef as NodeRef,
    StaticAttribute as StaticAttribute,
    SubGraphAttribute as SubGraphAttribute,
    VariableDef as VariableDef,
)
from ...core.graph.modes import set_graph_mode as set_graph_mode, set_graph_updates as set_graph_updates
from ...core.graph.traversal import (
    find_duplicates as find_duplicates,
    iter_children as iter_children,
    iter_graph as iter_graph,
    iter_module_children as iter_module_children,
    iter_modules as iter_modules,
    set_metadata as set_metadata,
    variables as variables,
)
from ...core.graph.walks import RefMap as RefMap
from ...core.nodes.nodes import (
    DataElem as DataElem,
    GenericPytree as GenericPytree,
    Static as Static,
    StaticElem as StaticElem,
    get_node_impl as get_node_impl,
    jax_to_nnx_path as jax_to_nnx_path,
    register_graph_node_type as register_graph_node_type,
    register_pytree_node_type as register_pytree_node_type,
)
from ...core.states.flat_graphs import unflatten as unflatten
from ...core.states.graph_state import GraphState as GraphState
from ...core.states.live import (
    call as call,
    flatten as flatten,
    merge as merge,
    split as split,
    state as state,
    unpack as unpack,
)
from ...edit.pop import graph_pop as graph_pop, pop as pop
from ...edit.views import map as map, recursive_map as recursive_map, with_vars as with_vars
from ...util.static_values import HashableMapping as HashableMapping
from .node_predicates import (
    get_node_impl_for_type as get_node_impl_for_type,
    is_graph_node as is_graph_node,
    is_node as is_node,
    is_node_leaf as is_node_leaf,
    is_node_module as is_node_module,
    is_node_type as is_node_type,
    is_pytree_node as is_pytree_node,
    is_state_leaf as is_state_leaf,
)
from .update_context import (
    IndexMap as IndexMap,
    MergeContext as MergeContext,
    SplitContext as SplitContext,
    UpdateContext as UpdateContext,
    current_update_context as current_update_context,
    merge_context as merge_context,
    split_context as split_context,
    update_context as update_context,
)

# Every name imported above; the reference documents them.
__all__ = sorted(name for name in globals() if name[:2] != "__" and name != "annotations")  # pyright: ignore[reportUnsupportedDunderAll]
__dir__ = __all__.copy
