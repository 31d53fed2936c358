"""Small functions and types that are public in Flax NNX and that plait itself does not use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ...core.graph.graphdef import GraphDef
from ...core.nodes.nodes import GRAPH_REGISTRY, PYTREE_REGISTRY, GraphNodeImpl, PytreeNodeImpl
from ...core.states.state import State
from ...errors import ArgumentError

A = TypeVar("A")
N = TypeVar("N")

# What `flax.nnx.pure` and `split` return; Flax names it in signatures.
PureState = tuple[GraphDef[N], State]


def first_from(*args: A | None, error_msg: str) -> A:
    """The first argument that is not ``None``.

    Raises:
        ValueError: all are ``None``; the message is ``error_msg``.
    """
    for arg in args:
        if arg is not None:
            return arg
    raise ValueError(error_msg)


def canonicalize_padding(padding: Any, rank: int) -> str | Sequence[tuple[int, int]]:
    """The padding of a convolution as JAX takes it.

    Args:
        padding: a name, which is returned unchanged, one number, or a number or a pair for each axis.
        rank: the number of spatial axes.

    Raises:
        ArgumentError: the padding has none of these forms.
    """
    if isinstance(padding, str):
        return padding
    each = [padding] * rank if isinstance(padding, int) else padding
    if isinstance(each, Sequence) and len(each) == rank:
        pairs = [(side, side) if isinstance(side, int) else tuple(side) for side in each]
        if all(len(pair) == 2 for pair in pairs):
            return pairs
    raise ArgumentError(
        "this is not a padding for a convolution",
        found=repr(padding),
        expected=f"a name, a number, or a sequence of {rank} numbers or pairs of numbers",
        do='use, for example, padding="SAME" or padding=1',
    )


def get_node_impl_for_type(x: type) -> GraphNodeImpl | PytreeNodeImpl | None:
    """How instances of ``x`` are flattened; ``GenericPytree`` for containers that are registered only with JAX.

    Example:
        >>> plait.graph.get_node_impl_for_type(dict).type, plait.graph.get_node_impl_for_type(int)
        (<class 'dict'>, None)
    """
    return GRAPH_REGISTRY.get(x) or PYTREE_REGISTRY.get(x)
