"""``vjp``, ``jvp`` and ``linearize``: derivatives with the type of what is differentiated, a module for a module.

They carry values only, as with ``graph_updates=False``: what the function writes into variables reaches the caller's
objects, structural changes do not. The output is taken apart into what has a derivative (the arrays, and the values of
new objects) and the rest (``aux``, and values written), which JAX gets as auxiliary output. (rule X15, section 10)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import Partial, register_static

from ..errors import ArgumentError, ArgumentTypeError
from ..words import describe_type
from .autodiff import check_pair
from .call.crossing import (
    Entered,
    Outcome,
    Structure,
    check_arguments,
    check_function,
    gather,
    leave_values_only,
    write_back,
)
from .call.prefixes import is_graph_leaf
from .tangent_trees import flatten_like, rebuild, shapes_of


def vjp(
    f: Any = None,
    /,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.vjp`` for functions of modules: the output, and a function from its cotangent to those of the arguments.

    Args:
        f: the function. Without it ``vjp`` returns a decorator; without primals, a function of them.
        *primals: the arguments; every leaf of a module among them is differentiated.
        has_aux: whether ``f`` returns a pair of an output and anything.
        graph: whether the arguments may be graphs; shared variables are refused either way.
        graph_updates: of no effect: only values are carried out, as with ``graph_updates=False``.

    Returns:
        ``(out, vjp_fn)``, or ``(out, vjp_fn, aux)``. ``vjp_fn(cotangent)`` is a tuple with a gradient for each primal,
        of the primal's own type: a module for a module. Values that ``f`` writes are written to the caller's objects
        once, by this call. If ``f`` returns objects, the cotangent has objects (or ``State``\\ s) in their places.

    Raises:
        ArgumentError: a variable is shared, or an input variable is returned.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> out, vjp_fn = plait.vjp(lambda model, x: model(x), model, jnp.ones((4, 2)))
        >>> by_model, by_x = vjp_fn(jnp.ones_like(out))
        >>> type(by_model).__name__, by_model.bias[...].tolist(), by_x.shape
        ('Linear', [4.0, 4.0, 4.0], (4, 2))
    """
    if f is None:
        return functools.partial(vjp, has_aux=has_aux, reduce_axes=reduce_axes, graph=graph)
    check_function(f, "vjp")
    if reduce_axes:
        raise NotImplementedError("vjp: reduce_axes is not offered by plait or by current JAX; leave it out")

    @functools.wraps(f)
    def of(*primals: Any) -> Any:
        call = _Call("vjp", f, primals, has_aux, graph)
        (values, plain), pull, rest = jax.vjp(call, *call.inputs, has_aux=True)
        out, aux = call.finish(values, plain, rest)
        shapes, treedef = jax.tree_util.tree_flatten(shapes_of(values))
        pullback = Partial(_Pullback(call.gathered.structure, rest[2].output, treedef, tuple(shapes)), pull)
        return (out, pullback, aux) if has_aux else (out, pullback)

    return of(*primals) if primals else of


def jvp(
    f: Any = None,
    /,
    primals: Any = None,
    tangents: Any = None,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.jvp`` for functions of modules: the output, and its derivative in one direction.

    Args:
        f: the function. Without it ``jvp`` returns a decorator; without primals, a function of primals and tangents.
        primals: a tuple of arguments.
        tangents: a tuple of directions, one for each primal. For a module a module of the same structure, or a
            ``State`` with its paths; leaves that the state leaves out have the tangent zero. What stands at integers
            and random keys is ignored: they have no tangent.
        has_aux: whether ``f`` returns a pair of an output and anything.
        graph: whether the arguments may be graphs; shared variables are refused either way.
        graph_updates: of no effect: only values are carried out, as with ``graph_updates=False``.

    Returns:
        ``(out, tangent)``, or ``(out, tangent, aux)``; the tangent has the type of the output. Values that ``f``
        writes are written to the caller's objects.

    Raises:
        ArgumentError: a variable is shared, an input variable is returned, or a tangent has other leaves than its
            primal.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> direction = jax.tree.map(jnp.ones_like, plait.state(model))
        >>> out, tangent = plait.jvp(lambda model: model.bias * 3, (model,), (direction,))
        >>> tangent.tolist()
        [3.0, 3.0, 3.0]
    """
    if f is None:
        return functools.partial(jvp, has_aux=has_aux, graph=graph)
    check_function(f, "jvp")

    @functools.wraps(f)
    def of(primals: Any, tangents: Any) -> Any:
        _check_tuple("jvp", "primals", primals, None)
        _check_tuple("jvp", "tangents", tangents, len(primals))
        call = _Call("jvp", f, tuple(primals), has_aux, graph)
        (values, plain), slopes, rest = jax.jvp(call, call.inputs, call.tangents()(tuple(tangents)), has_aux=True)
        out, aux = call.finish(values, plain, rest)
        tangent = rebuild(rest[2].output, *slopes)
        return (out, tangent, aux) if has_aux else (out, tangent)

    return of if primals is None else of(primals, tangents)


def linearize(
    f: Any = None,
    /,
    *primals: Any,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.linearize`` for functions of modules: the output, and its derivative as a linear function.

    Computes what ``jvp`` does, but evaluates ``f`` once for any number of directions. Arguments as in ``vjp``.

    Returns:
        ``(out, jvp_fn)``, or ``(out, jvp_fn, aux)``. ``jvp_fn(*tangents)``, with tangents as in ``jvp``, is the
        tangent of the output.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> out, jvp_fn = plait.linearize(lambda model, x: model(x), model, jnp.ones((1, 2)))
        >>> jvp_fn(plait.State({"bias": plait.Param(jnp.arange(3.0))}), jnp.zeros((1, 2))).tolist()
        [[0.0, 1.0, 2.0]]
    """
    if f is None:
        return functools.partial(linearize, has_aux=has_aux, graph=graph)
    check_function(f, "linearize")

    @functools.wraps(f)
    def of(*primals: Any) -> Any:
        call = _Call("linearize", f, primals, has_aux, graph)
        (values, plain), push, rest = jax.linearize(call, *call.inputs, has_aux=True)
        out, aux = call.finish(values, plain, rest)
        count, output, to_tangents = len(primals), rest[2].output, call.tangents()

        def jvp_fn(*tangents: Any) -> Any:
            _check_tuple("linearize", "tangents", tangents, count)
            return rebuild(output, *push(*to_tangents(tangents)))

        return (out, jvp_fn, aux) if has_aux else (out, jvp_fn)

    return of(*primals) if primals else of


def _check_tuple(name: str, option: str, given: Any, count: int | None) -> None:
    if not isinstance(given, (tuple, list)):
        raise ArgumentTypeError(
            f"{name} takes {option} as a tuple",
            found=describe_type(given),
            expected="one entry for each argument of the function",
            do=f"write a tuple of one for one argument: {option}=({option[:-1]},)",
        )
    if count is not None and len(given) != count:
        raise ArgumentError(
            f"{name} needs one tangent for each primal",
            found=f"{len(given)} {option} for {count} primals",
            expected=f"{count} {option}",
            do="pass zeros for an argument that does not move: jnp.zeros_like(x)",
        )


@register_static
@dataclasses.dataclass(frozen=True)
class _Rest:
    """The static half of what a function returned.

    Attributes:
        outcome: what to do to the caller's objects.
        output: the structure of the differentiable output.
        treedef: of the whole output, or ``None`` when the outcome has it.
    """

    outcome: Outcome
    output: Structure
    treedef: Any


class _Call:
    """One call, as a function of values and plain leaves that returns what is differentiable, and the rest."""

    def __init__(self, name: str, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, graph: Any) -> None:
        self.name, self.f, self.has_aux = name, f, has_aux
        self.gathered = gather((primals, {}))
        check_arguments(name, f, (primals, {}), graph, False)
        self.inputs = self.gathered.values(), self.gathered.plain

    def __call__(self, values: list[Any], plain: list[Any]) -> Any:
        entered = Entered(self.gathered.structure, values, plain)
        out = self.f(*entered.tree[0])
        primal = check_pair(self.name, out)[0] if self.has_aux else out
        left = leave_values_only(entered, out, self.name)
        outcome, whole = left.outcome, left.outcome.output
        leaves, treedef = jax.tree_util.tree_flatten(primal, is_leaf=is_graph_leaf)
        graphdefs = (None,) * len(leaves) if whole is None else whole.graphdefs[: len(leaves)]
        output = Structure(treedef, graphdefs)
        written = len(outcome.written)
        first = written + sum(graphdef.num_leaves for graphdef in graphdefs if graphdef is not None)
        plain_leaves, whole_treedef = jax.tree_util.tree_flatten(left.plain)
        if whole is not None:
            plain_leaves, whole_treedef = left.plain, None
        count = graphdefs.count(None)
        rest = left.values[:written] + left.values[first:], plain_leaves[count:]
        return (left.values[written:first], plain_leaves[:count]), (*rest, _Rest(outcome, output, whole_treedef))

    def finish(self, values: list[Any], plain: list[Any], rest: tuple[list[Any], list[Any], _Rest]) -> tuple[Any, Any]:
        """Write back what was written. Returns the output, and what came beside it."""
        rest_values, rest_plain, static = rest
        written = len(static.outcome.written)
        whole: Any = [*plain, *rest_plain]
        if static.treedef is not None:
            whole = jax.tree_util.tree_unflatten(static.treedef, whole)
        all_values = [*rest_values[:written], *values, *rest_values[written:]]
        out = write_back(static.outcome, self.gathered, all_values, whole)
        return out if self.has_aux else (out, None)

    def tangents(self) -> Callable[[tuple[Any, ...]], tuple[list[Any], list[Any]]]:
        """From the tangents of the arguments to those of the inputs. Holds no array, and no object of the caller's."""
        structure, shapes, what = self.gathered.structure, shapes_of(self.inputs[0]), f"{self.name}: the tangents"
        return lambda tangents: flatten_like(structure, shapes, (tangents, {}), what)


@dataclasses.dataclass(frozen=True)
class _Pullback:
    """From the cotangent of the output to the gradients of the arguments; equal for equal structures."""

    arguments: Structure
    output: Structure
    treedef: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    def __call__(self, pull: Callable[..., Any], cotangent: Any) -> tuple[Any, ...]:
        primals = jax.tree_util.tree_unflatten(self.treedef, self.shapes)
        values, plain = flatten_like(self.output, primals, cotangent, "vjp: the cotangent")
        return rebuild(self.arguments, *pull((values, plain)))[0]
