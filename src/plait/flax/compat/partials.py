"""``cached_partial`` and ``jit_partial``: transformed functions with their first arguments bound. (rules U35, U36, X11)

Nothing is cached here: ``plait.jit`` itself caches the walk of its arguments, and walks again when their structure
changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ...core.graph.walks import is_graph_leaf
from ...core.nodes.nodes import iter_variables
from ...core.transform import Transformation
from ...errors import ArgumentError, ArgumentTypeError
from ...transforms.call.arguments import argument_name, parameter_names
from ...transforms.call.call import check_function
from ...transforms.jit.function import jit
from ...util.words import describe_type
from .modes import Crossing, graph_mode, graph_updates_mode

JIT_PARTIAL = Transformation("jit_partial", "plait.jit_partial({f}, {curried})", only_values=True)


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
    if not callable(f):
        raise ArgumentTypeError(
            "cached_partial takes a function",
            found=describe_type(f),
            expected="a transformed function",
            do="call plait.cached_partial(plait.jit(f), model)",
        )
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

    Only values are propagated: variables of the bound arguments get what ``fun`` wrote, and structural changes made in
    ``fun`` are lost. All variables must be in the bound arguments.

    Args:
        fun: the function, not yet transformed.
        partial_args: its first arguments.
        options: as in ``plait.jit``; positions count from the first bound argument.

    Returns:
        The function; it has the stages ``trace``, ``lower`` and ``eval_shape`` of ``plait.jit``, which get the other
        arguments too.

    Raises:
        ArgumentError: a variable is in the other arguments or is passed twice, ``graph_updates=True`` is passed
            without ``graph=False``, or ``plait.jit`` rejects the call.
        GraphError: with ``graph=False``, an object is at two paths of the bound arguments.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> forward = plait.jit_partial(lambda model, x: model(x), model)
        >>> forward(jnp.ones((1, 2))).shape
        (1, 3)
    """
    check_function(fun, JIT_PARTIAL)
    if graph_updates and graph_mode(graph):
        raise ArgumentError(
            "jit_partial propagates values only",
            found="graph_updates=True",
            expected="graph_updates=False, or nothing",
            do="use plait.cached_partial(plait.jit(f), model)",
        )
    crossing = Crossing(graph, graph_updates=False)
    crossing.check(partial_args, lambda: [*map(parameter_names(fun).at, range(len(partial_args)))])
    jitted: Any = jit(fun, crossing=crossing, **options)  # pyright: ignore[reportCallIssue]

    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        _check_no_variables(fun, len(partial_args), args, kwargs)
        return jitted(*partial_args, *args, **kwargs)

    def staged(name: str) -> Callable[..., Any]:
        """A method of the jitted function that gets the bound arguments too, as the stages after it do."""

        def stage(*args: Any, **kwargs: Any) -> Any:
            _check_no_variables(fun, len(partial_args), args, kwargs)
            found = getattr(jitted, name)(*partial_args, *args, **kwargs)
            if name != "eval_shape":
                prepare = found._prepare
                found._prepare = lambda given, named: prepare((*partial_args, *given), named)
            return found

        return stage

    for name in ("trace", "lower", "eval_shape"):
        setattr(wrapper, name, staged(name))
    return wrapper


def _check_no_variables(fun: Callable[..., Any], bound: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names, tree = parameter_names(fun), ((*[None] * bound, *args), kwargs)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_graph_leaf)[0]:
        if is_graph_leaf(leaf) and any(True for _ in iter_variables(leaf)):
            raise ArgumentError(
                "jit_partial takes variables in the bound arguments only",
                at=f"argument {argument_name(path, names)}",
                found=describe_type(leaf),
                expected="arrays, numbers, and pytrees of them",
                do="bind it too: plait.jit_partial(f, model, other); or use plait.jit(f)",
            )
