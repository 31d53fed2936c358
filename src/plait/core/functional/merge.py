"""Building a graph from structure and values: the inverse of ``split``, and copies. (rules G37, G41)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, overload

import jax

from ...errors import ArgumentError, GraphError, GraphTypeError
from ...typing import Node, Tree, Value
from ..graph.graphdef import GraphDef, NodeDef, NodeRef
from ..graph.modes import check_mode
from ..graph.state_leaves import leaves_in_order, nested_mapping
from ..graph.unflatten import Builder, copied_variables, own_variables, raw_leaves
from ..graph.walks import Walk, find_walk
from ..nodes.pytree import copied_buffers
from ..states.state import State
from ..variables.variables import Variable
from .split import detached_leaves

N = TypeVar("N")


def leaves_of(graphdef: GraphDef, *states: Tree) -> list[Value]:
    """The leaves of states of any form, in the walk order of a graphdef; later states take precedence."""
    if isinstance(states[0], list):
        return states[0]
    if isinstance(graphdef, NodeDef):
        return leaves_in_order(graphdef, nested_mapping(states, "merge"))
    full = [state for state in states if not (isinstance(state, State) and not state)]
    return [] if isinstance(graphdef, NodeRef) else full[-1:]


class Bundle:
    """What ``merge`` takes in place of a graphdef and its states."""

    __slots__ = ()

    def opened(self, others: Iterable[Tree]) -> tuple[Tree, ...]:
        """The graphdef, and the states of this and of other bundles."""
        raise NotImplementedError


@overload
def merge(
    graphdef: GraphDef[N], state: Tree, /, *states: Tree, copy: bool = ..., recreate_variables: bool = ...
) -> N: ...
@overload
def merge(graphdef: Bundle, /, *states: Tree, copy: bool = ..., recreate_variables: bool = ...) -> Node: ...
def merge(
    graphdef: Any,
    state: Tree = None,
    /,
    *states: Tree,
    copy: bool = True,
    recreate_variables: bool = True,
) -> Node:
    """Build the graph of a graphdef and its states: the inverse of ``split``.

    Args:
        graphdef: the structure, or a ``GraphState`` (more may follow).
        state: a ``State``, a nested dict of variables or raw values, or a list of leaves in walk order.
        *states: more states, merged by path; later ones take precedence.
        copy: whether the result gets new variables; ``False`` puts the state's own variables into the result.
        recreate_variables: whether to create variables for raw values.

    Raises:
        GraphTypeError: the first argument is not a graphdef, or no state was given.
        GraphError: the states do not match the graphdef; the message names the paths.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> again = plait.merge(*plait.split(model))
        >>> again is model, bool((again.kernel[...] == model.kernel[...]).all())
        (False, True)
    """
    if isinstance(graphdef, Bundle):
        graphdef, state, *rest = graphdef.opened(each for each in (state, *states) if each is not None)
        states = (*rest,)
    _check_mergeable(graphdef, state, states)
    make_variables = raw_leaves if not recreate_variables else copied_variables if copy else own_variables
    return Builder(None, None, make_variables).build(graphdef, leaves_of(graphdef, state, *states))


def _check_mergeable(graphdef: object, state: Tree, states: tuple[Tree, ...]) -> None:
    if not isinstance(graphdef, GraphDef):
        raise GraphTypeError(
            "Expected a GraphDef: merge takes a graphdef first",
            found=f"a {type(graphdef).__name__}",
            expected="a GraphDef or GraphState",
            do="call merge(graphdef, state) with what split(model) returned",
        )
    if state is None:
        raise GraphTypeError(
            "merge was called without a state",
            found="a graphdef alone",
            expected="merge(graphdef, state, ...)",
            do="pass the state that split returned with the graphdef",
        )
    if isinstance(state, list) and states:
        raise GraphError(
            "merge takes only one list of leaves",
            found=f"{1 + len(states)} states, the first a list",
            expected="merge(graphdef, [leaves])",
            do="concatenate the lists of leaves in flattening order",
        )


def clone(node: N, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> N:
    """A deep copy of the structure, with the same sharing and cycles.

    Args:
        variables: whether the copy gets new variables; ``False`` shares the variable objects.
        arrays: whether to copy the arrays too, instead of sharing them.
        graph: as in ``split``.

    Raises:
        ArgumentError: ``arrays=True`` with ``variables=False``.
    """
    check_mode(node, graph)
    if arrays and not variables:
        raise ArgumentError(
            "clone cannot copy arrays if it shares the variables",
            found="variables=False, arrays=True",
            expected="arrays=True only together with variables=True",
            do="remove one of the two arguments",
        )
    if not variables:
        walk = Walk()
        graphdef = walk.add(node)
        return Builder().build(graphdef, walk.leaves)
    cached = find_walk((node,))
    leaves = detached_leaves(cached)
    if arrays:
        leaves = [
            leaf.copy(jax.tree.map(copied_buffers, leaf.get_raw_value()))
            if isinstance(leaf, Variable)
            else copied_buffers(leaf)
            for leaf in leaves
        ]
    return Builder().build(cached.graphdefs[0], leaves)
