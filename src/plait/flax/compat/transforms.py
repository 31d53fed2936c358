"""The transforms that take ``graph=`` and ``graph_updates=``, each made from one that takes a crossing.

``cached_partial`` and ``jit_partial`` bind the first arguments of one. Nothing is cached there: ``plait.jit`` itself
caches the walk of its arguments, and walks again when their structure changes. (rules U35, U36, X11)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...edit import reseeding
from ...errors import ArgumentError
from ...transforms import (
    autodiff,
    axis_names,
    batching,
    branches,
    custom_rules,
    jacobians,
    lax_map as maps,
    loops,
    remat as recomputing,
    sharded,
    stream_rules,
    streams,
    tangents,
)
from ...transforms.call import prefixes as prefix_trees
from ...transforms.jit import function, shapes
from .modes import Crossing, by_position, carried, checked, graph_mode, graph_updates_mode

if TYPE_CHECKING:  # their own overloads list the modes too
    from ...transforms.autodiff import grad, value_and_grad
    from ...transforms.batching import vmap
    from ...transforms.jit.function import jit
    from ...transforms.loops import scan
    from ...transforms.remat import remat
else:
    jit = carried(function.jit)
    grad = carried(autodiff.grad)
    value_and_grad = carried(autodiff.value_and_grad)
    vmap = carried(batching.vmap)
    scan = carried(loops.scan)
    remat = carried(recomputing.remat)

vjp = carried(tangents.vjp)
jvp = carried(tangents.jvp)
linearize = carried(tangents.linearize)
jacrev = carried(jacobians.jacrev)
jacfwd = carried(jacobians.jacfwd)
hessian = carried(jacobians.hessian)
hvp = carried(jacobians.hvp)
pmap = carried(batching.pmap)
shard_map = carried(sharded.shard_map)
custom_vjp = carried(custom_rules.custom_vjp)
custom_jvp = carried(custom_rules.custom_jvp)
lax_map = carried(maps.lax_map)
while_loop = carried(loops.while_loop)
fori_loop = carried(loops.fori_loop)
cond = carried(branches.cond)
switch = carried(branches.switch)
eval_shape = carried(shapes.eval_shape)
make_jaxpr = carried(shapes.make_jaxpr)
checkify = by_position(carried(shapes.checkify))

split_rngs = carried(streams.split_rngs)
fork_rngs = carried(streams.fork_rngs)
with_rngs = carried(stream_rules.with_rngs)
backup_keys = checked(streams.backup_keys)
reseed = checked(reseeding.reseed)

transform_metadata = carried(axis_names.transform_metadata)
prefix = checked(prefix_trees.prefix)


def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[..., Any]:
    """``f`` with its first arguments bound: ``cached_partial(f, model)(x)`` is ``f(model, x)``.

    If the structure of the bound arguments has not changed, a call does not walk them again; ``plait.jit`` treats all
    its arguments this way, so this is a convenience. The structure may change between calls and in them.

    Args:
        f: a transformed function, such as the result of ``plait.jit``.
        cached_args: its first arguments.

    Raises:
        ArgumentError: ``graph=False`` or ``graph_updates=False`` is set.

    Example:
        >>> @plait.jit
        ... def step(counter, x):
        ...     counter.count += 1
        ...     return counter.count * x
        >>> class Counter(plait.Module):
        ...     def __init__(self):
        ...         self.count = plait.Variable(jnp.zeros(()))
        >>> counter = Counter()
        >>> bound = plait.cached_partial(step, counter)
        >>> float(bound(2.0)), float(bound(2.0)), float(counter.count)
        (2.0, 4.0, 2.0)
    """
    if not Crossing(graph, graph_updates).updates:
        raise ArgumentError(
            "cached_partial propagates structural changes, so it needs graph mode",
            found=f"graph={graph_mode(graph)}, graph_updates={graph_updates_mode(graph_updates)}",
            expected="graph=True and graph_updates=True",
            do="use plait.jit_partial(f, model), or pass both: plait.cached_partial(jitted, model, graph=True, "
            "graph_updates=True)",
        )
    return functools.partial(f, *cached_args)


def jit_partial(
    fun: Callable[..., Any],
    *partial_args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """``plait.jit(fun, graph_updates=False)`` with its first arguments bound.

    Only values are propagated: variables of the arguments get what ``fun`` wrote, and structural changes made in
    ``fun`` are lost, unless ``graph_updates=True`` is passed.

    Args:
        fun: the function, not yet transformed.
        partial_args: its first arguments.
        options: as in ``plait.jit``; positions count from the first bound argument.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> forward = plait.jit_partial(lambda model, x: model(x), model)
        >>> forward(jnp.ones((1, 2))).shape
        (1, 3)
    """
    jitted: Any = function.jit(fun, crossing=Crossing(graph, bool(graph_updates)), **options)  # pyright: ignore[reportCallIssue]
    return functools.partial(jitted, *partial_args)
