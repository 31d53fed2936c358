"""The kind of a value or a type in a graph. (rule G3)"""

from __future__ import annotations

from typing import Any

from ...core.nodes.nodes import (
    GRAPH_REGISTRY,
    PYTREE_REGISTRY,
    GraphNodeImpl,
    Kind,
    PytreeNodeImpl,
    _is_jax_container,
    kind_of,
)
from ...core.variables.variables import Variable


def is_node(x: Any) -> bool:
    """Whether ``x`` is a graph node or a pytree node; variables are not.

    Example:
        >>> plait.graph.is_node([]), plait.graph.is_node(plait.Param(1.0)), plait.graph.is_node(3)
        (True, False, False)
    """
    return kind_of(x) in (Kind.GRAPH, Kind.PYTREE)


def is_graph_node(x: Any) -> bool:
    """Whether ``x`` has identity in a graph: a registered graph node, a variable or a reference.

    Example:
        >>> plait.graph.is_graph_node(plait.Param(1.0)), plait.graph.is_graph_node([])
        (True, False)
    """
    return kind_of(x) in (Kind.GRAPH, Kind.VARIABLE, Kind.REF)


def is_node_module(x: Any) -> bool:
    """Whether the type of ``x`` is in the graph node registry.

    Example:
        >>> plait.graph.is_node_module(plait.List()), plait.graph.is_node_module([])
        (True, False)
    """
    return type(x) in GRAPH_REGISTRY


def is_pytree_node(x: Any, *, check_graph_registry: bool = True) -> bool:
    """Whether ``x`` is a pytree node; with ``check_graph_registry=False``, also graph nodes that are registered with
    JAX.

    Example:
        >>> layers = plait.List()
        >>> plait.graph.is_pytree_node(layers), plait.graph.is_pytree_node(layers, check_graph_registry=False)
        (False, True)
    """
    if check_graph_registry or type(x) not in GRAPH_REGISTRY:
        return kind_of(x) is Kind.PYTREE
    return _is_jax_container(x)


def is_node_type(x: type) -> bool:
    """Whether instances of ``x`` are graph nodes, or pytree nodes registered with plait.

    Example:
        >>> plait.graph.is_node_type(plait.Module), plait.graph.is_node_type(dict), plait.graph.is_node_type(int)
        (True, True, False)
    """
    return x in GRAPH_REGISTRY or x in PYTREE_REGISTRY


def is_node_leaf(x: Any) -> bool:
    """Whether ``x`` is a leaf of a graph: a variable, an array or a reference.

    Example:
        >>> plait.graph.is_node_leaf(jnp.zeros(2)), plait.graph.is_node_leaf(2.0)
        (True, False)
    """
    return kind_of(x) in (Kind.VARIABLE, Kind.ARRAY, Kind.REF)


def is_state_leaf(x: Any) -> bool:
    """Whether ``x`` is a leaf of a state: any variable.

    Example:
        >>> plait.graph.is_state_leaf(plait.Param(1.0)), plait.graph.is_state_leaf(jnp.zeros(2))
        (True, False)
    """
    return isinstance(x, Variable)


def get_node_impl_for_type(x: type) -> GraphNodeImpl | PytreeNodeImpl | None:
    """How instances of ``x`` are flattened; ``GenericPytree`` for containers that are registered only with JAX.

    Example:
        >>> plait.graph.get_node_impl_for_type(dict).type, plait.graph.get_node_impl_for_type(int)
        (<class 'dict'>, None)
    """
    return GRAPH_REGISTRY.get(x) or PYTREE_REGISTRY.get(x)
