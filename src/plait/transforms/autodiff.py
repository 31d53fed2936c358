"""Differentiation: ``grad`` and ``value_and_grad`` with respect to parts of the arguments.

The differentiated values are taken out of the gathered arguments and handed to ``jax.value_and_grad`` as its one
differentiable argument; everything else is closed over. Changes that the function makes (statistics, random counters)
come back as auxiliary output and are written to the caller's objects. (rules U30, X13, X14)

With structural updates a module's gradient is a ``State`` of the chosen leaves; where only values are carried it is a
module, with a gradient for every leaf. (section 10)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.functional.modes import in_default_modes
from ..errors import ArgumentTypeError
from ..words import describe_type
from .call.crossing import check_arguments, check_function, gather, run_inside, write_back
from .call.lanes import positional
from .call.prefixes import is_graph_leaf
from .selections import (
    DiffState,
    check_differentiable,
    check_distinct,
    check_sharing,
    number_of,
    resolve,
    select,
    warn_of_nothing,
)


def grad(
    f: Any = None,
    /,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.grad`` for functions of modules: the gradient of a scalar with respect to the ``Param`` leaves.

    Args:
        f: a function that returns a scalar (with ``has_aux``: a pair of a scalar and anything).
        argnums: which arguments to differentiate: positions, or ``DiffState``s that select other leaves.
        has_aux, holomorphic, allow_int: as in ``jax.grad``.
        graph, graph_updates: whether the arguments are graphs, and whether structural changes are carried out. If
            either is false, only values are: every leaf of a module is differentiated (none may hold integers, short
            of ``allow_int``), and its gradient is a module.

    Returns:
        A function that returns the gradient. For a module it is a ``State`` of the differentiated leaves only, with
        the same paths as the model; for a variable a variable; for arrays and pytrees as in JAX; for several argnums
        a tuple. Changes that ``f`` makes to its arguments are made to the caller's objects.

    Raises:
        ArgumentError: a position is given twice, or a ``DiffState`` where only values are carried.
        ArgumentTypeError: a position names no positional argument.
        SharingError: a variable is reached through two arguments, of which one is differentiated and the other is not.

    Warns:
        NothingSelectedWarning: there is nothing to differentiate, or nothing that a ``DiffState`` matches.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> grads = plait.grad(lambda model, x: model(x).sum())(model, jnp.ones((4, 2)))
        >>> grads["bias"][...].tolist()
        [4.0, 4.0, 4.0]
    """
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    options |= {"reduce_axes": reduce_axes, "graph": graph, "graph_updates": graph_updates}
    if f is None:
        return functools.partial(grad, **options)
    value_and_gradient = _lift("grad", f, **options)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value, grads = value_and_gradient(args, kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapper


def value_and_grad(
    f: Any = None,
    /,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.value_and_grad`` for functions of modules; arguments as in ``grad``.

    Returns:
        A function that returns ``(value, gradient)``; with ``has_aux``, ``((value, aux), gradient)``.

    Example:
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> loss, grads = plait.value_and_grad(lambda m: (m.bias ** 2).sum())(model)
        >>> float(loss), list(grads)
        (0.0, ['bias', 'kernel'])
    """
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    options |= {"reduce_axes": reduce_axes, "graph": graph, "graph_updates": graph_updates}
    if f is None:
        return functools.partial(value_and_grad, **options)
    value_and_gradient = _lift("value_and_grad", f, **options)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return value_and_gradient(args, kwargs)

    return wrapper


def _lift(
    name: str,
    f: Callable[..., Any],
    *,
    argnums: Any,
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    reduce_axes: Sequence[Any],
    graph: bool | None,
    graph_updates: bool | None,
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]:
    """The function of (args, kwargs) that returns the value (with aux) and the gradients."""
    check_function(f, name)
    if reduce_axes:
        raise NotImplementedError(f"{name}: reduce_axes is not offered by plait or by current JAX; leave it out")
    single = isinstance(argnums, (int, DiffState))
    given = (argnums,) if single else tuple(argnums)
    check_distinct(name, "argnums", given)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if kwargs and any(number_of(argnum) >= len(args) for argnum in given):
            args, kwargs = positional(f, args, kwargs)
        check_distinct(name, "argnums", given, len(args))
        gathered = gather((args, kwargs))
        updates = in_default_modes(graph, graph_updates)
        check_arguments(name, f, (args, kwargs), graph, updates)
        requests = [resolve(name, argnum, len(args), updates) for argnum in given]
        if updates and len(gathered.roots) > 1:
            check_sharing(name, f, args, kwargs, requests)
        selections = [select(gathered, args, request, updates) for request in requests]
        if updates:
            warn_of_nothing(name, f, args, gathered, given, selections)
        if not allow_int:
            check_differentiable(name, f, args, gathered, selections)
        # A NumPy array would be written in place, and cannot take a tracer.
        values = [jnp.asarray(value) if type(value) is np.ndarray else value for value in gathered.values()]
        plain = gathered.plain
        picked = [selection.take(values, plain) for selection in selections]

        def pure(differentiated: list[list[Any]]) -> Any:
            inner_values, inner_plain = list(values), list(plain)
            for selection, part in zip(selections, differentiated, strict=True):
                selection.put(inner_values, inner_plain, part)
            scalar: list[Any] = []

            def call(*args: Any, **kwargs: Any) -> Any:
                out = f(*args, **kwargs)
                out, rest = check_pair(name, out) if has_aux else (out, None)
                _check_no_object(name, out)
                scalar.append(out)
                return rest

            result = run_inside(call, gathered.structure, inner_values, inner_plain, name, updates=updates)
            return scalar[0], result

        differentiate = jax.value_and_grad(pure, has_aux=True, holomorphic=holomorphic, allow_int=allow_int)
        (value, result), gradients = differentiate(picked)
        aux = write_back(result.outcome, gathered, result.values, result.plain)
        grads = tuple(selection.result(part) for selection, part in zip(selections, gradients, strict=True))
        return ((value, aux) if has_aux else value), (grads[0] if single else grads)

    return run


def _check_no_object(name: str, out: Any) -> None:
    if is_graph_leaf(out):
        raise ArgumentTypeError(
            f"{name} needs a function that returns a scalar",
            found=describe_type(out),
            expected="an array of shape ()",
            do="return variable[...] in place of variable; or pass has_aux=True and return (scalar, module)",
        )


def check_pair(name: str, out: Any) -> tuple[Any, Any]:
    """What a function with ``has_aux=True`` returned.

    Raises:
        ArgumentTypeError: no pair.
    """
    if not (isinstance(out, tuple) and len(out) == 2):
        raise ArgumentTypeError(
            f"{name} with has_aux=True needs a function that returns a pair",
            found=describe_type(out),
            expected="(output, aux)",
            do="return (output, aux), or drop has_aux=True",
        )
    return out
