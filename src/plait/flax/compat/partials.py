"""``cached_partial`` and ``jit_partial`` bind the first arguments of a transformed function. (rules U35, U36, X11)

Nothing is cached here: ``plait.jit`` itself caches the walk of its arguments, and walks again when their structure
changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.graph.modes import Crossing, graph_mode, graph_updates_mode
from ...errors import ArgumentError
from ...transforms.jit.function import jit


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
    jitted: Any = jit(fun, graph=graph, graph_updates=bool(graph_updates), **options)
    return functools.partial(jitted, *partial_args)
