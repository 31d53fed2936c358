"""Differentiation: ``grad`` and ``value_and_grad`` with respect to parts of the arguments.

The differentiated values are a port of the call, which is the one differentiable argument of ``jax.value_and_grad``;
everything else is closed over. Changes that the function makes (statistics, random counters) come back as auxiliary
output and are written to the caller's objects. (rules U30, X13, X14)

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

from ..core.objects.named import Sentinel
from ..errors import ArgumentTypeError
from ..words import describe_type
from .call.arguments import positional
from .call.call import Call
from .call.functions import check_function
from .call.policy import STRUCTURE, Crossing, usual_or_values
from .call.prefixes import Prefix, is_graph_leaf
from .selections import (
    DIFFERENTIATED,
    DiffState,
    check_differentiable,
    check_distinct,
    check_positions,
    gradients_of,
    number_of,
    resolve,
    spread_requests,
    warn_of_nothing,
)

# The ports of what a function with a gradient returns.
VALUE = Sentinel(__name__, "VALUE", "the value")
BESIDE = Sentinel(__name__, "BESIDE", "beside the value")


def grad(
    f: Any = None,
    /,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    crossing: Crossing = STRUCTURE,
) -> Any:
    """``jax.grad`` for functions of modules: the gradient of a scalar with respect to the ``Param`` leaves.

    Args:
        f: a function that returns a scalar (with ``has_aux``: a pair of a scalar and anything).
        argnums: which arguments to differentiate: positions, or ``DiffState``s that select other leaves.
        has_aux, holomorphic, allow_int: as in ``jax.grad``.

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
    options |= {"reduce_axes": reduce_axes, "crossing": crossing}
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
    crossing: Crossing = STRUCTURE,
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
    options |= {"reduce_axes": reduce_axes, "crossing": crossing}
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
    crossing: Crossing,
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]:
    """The function of (args, kwargs) that returns the value (with aux) and the gradients."""
    check_function(f, name)
    if reduce_axes:
        raise NotImplementedError(f"{name}: reduce_axes is not offered by plait or by current JAX; leave it out")
    single = not isinstance(argnums, (tuple, list))
    given = (argnums,) if single else tuple(argnums)
    check_positions(name, "argnums", given)
    check_distinct(name, "argnums", given)

    outs = Prefix.of(name, "the output", (VALUE, BESIDE) if has_aux else VALUE, updates=True)

    def check_output(out: Any) -> None:
        _check_scalar(name, check_pair(name, out)[0] if has_aux else out)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if kwargs and any(number_of(argnum) >= len(args) for argnum in given):
            args, kwargs = positional(f, args, kwargs)
        check_distinct(name, "argnums", given, len(args))
        carried = usual_or_values(crossing)
        requests = [resolve(name, argnum, len(args), carried.updates) for argnum in given]
        ins = spread_requests(args, kwargs, requests)
        rules = {"writes": BESIDE, "returns_inputs": True, "check_output": check_output}
        call = Call(name, f, args, kwargs, ins=ins, outs=outs, crossing=carried, **rules)
        if carried.updates:
            warn_of_nothing(name, call, args, given)
        if not allow_int:
            check_differentiable(name, call)
        port = call.ports.index(DIFFERENTIATED)
        # A NumPy array would be written in place, and cannot take a tracer.
        inputs = [[jnp.asarray(x) if type(x) is np.ndarray else x for x in values] for values in call.inputs]

        def pure(differentiated: list[Any]) -> Any:
            outputs, outcome = call.body([*inputs[:port], differentiated, *inputs[port + 1 :]])
            return outputs[call.ports.index(VALUE)][0], (call.port(BESIDE, outputs), outcome)

        differentiate = jax.value_and_grad(pure, has_aux=True, holomorphic=holomorphic, allow_int=allow_int)
        (value, (beside, outcome)), part = call.run(differentiate, inputs[port])
        found = {VALUE: [value], BESIDE: beside}
        out = call.finish([found.get(kind, []) for kind in call.ports], outcome)
        grads = gradients_of(call, args, requests, part, states=carried.updates)
        return out, (grads[0] if single else grads)

    return run


def _check_scalar(name: str, out: Any) -> None:
    """Refuse what has no gradient.

    Raises:
        ArgumentTypeError: no scalar.
    """
    leaves = jax.tree_util.tree_leaves(out, is_leaf=is_graph_leaf)
    if len(leaves) == 1 and leaves[0] is out and not is_graph_leaf(out) and np.shape(out) == ():
        return
    is_array = len(leaves) == 1 and leaves[0] is out and not is_graph_leaf(out)
    raise ArgumentTypeError(
        f"Gradient only defined for scalar-output functions: {name} needs a function that returns a scalar",
        found=f"an array of shape {np.shape(out)}" if is_array else describe_type(out),
        expected="an array of shape ()",
        do="reduce the output, for example with .mean()"
        if is_array
        else "return variable[...] in place of a variable, or pass has_aux=True and return (scalar, anything)",
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
