"""The namespace ``plait.graph``: everything about graphs that users reach for, low-level names included."""

from __future__ import annotations

from ..functional.calls import (
    GraphState as GraphState,
    clone as clone,
    flatten as flatten,
    graph_pop as graph_pop,
    graphdef as graphdef,
    merge as merge,
    pop as pop,
    split as split,
    state as state,
    unflatten as unflatten,
    unpack as unpack,
    update as update,
    variables as variables,
)
from ..functional.modes import set_graph_mode as set_graph_mode, set_graph_updates as set_graph_updates
from ..functional.proxy_caller import call as call
from ..functional.traversal import (
    find_duplicates as find_duplicates,
    iter_children as iter_children,
    iter_graph as iter_graph,
    iter_module_children as iter_module_children,
    iter_modules as iter_modules,
    set_metadata as set_metadata,
)
from ..functional.update_context import (
    MergeContext as MergeContext,
    SplitContext as SplitContext,
    UpdateContext as UpdateContext,
    compose_mapping as compose_mapping,
    compose_mapping_reversed as compose_mapping_reversed,
    current_update_context as current_update_context,
    merge_context as merge_context,
    split_context as split_context,
    update_context as update_context,
)
from ..graph.flatten import IndexMap as IndexMap, RefMap as RefMap
from ..graph.graphdef import (
    GraphDef as GraphDef,
    LeafAttribute as LeafAttribute,
    NodeDef as NodeDef,
    NodeRef as NodeRef,
    StaticAttribute as StaticAttribute,
    SubGraphAttribute as SubGraphAttribute,
    VariableDef as VariableDef,
)
from ..objects.nodes import (
    DataElem as DataElem,
    GenericPytree as GenericPytree,
    Static as Static,
    StaticElem as StaticElem,
    get_node_impl as get_node_impl,
    get_node_impl_for_type as get_node_impl_for_type,
    is_graph_node as is_graph_node,
    is_node as is_node,
    is_node_leaf as is_node_leaf,
    is_node_module as is_node_module,
    is_node_type as is_node_type,
    is_pytree_node as is_pytree_node,
    is_state_leaf as is_state_leaf,
    jax_to_nnx_path as jax_to_nnx_path,
    register_graph_node_type as register_graph_node_type,
    register_pytree_node_type as register_pytree_node_type,
)
from ..objects.statics import HashableMapping as HashableMapping
from .views import map as map, recursive_map as recursive_map, with_vars as with_vars
