"""``vjp``, ``jvp`` and ``linearize``: derivatives of the same type as the primals, so a module for a module.

They carry only values, as with ``graph_updates=False``: writes to variables reach the caller's objects, structural
changes do not. The output has two ports: values with a derivative (arrays, and the values of new objects), and the rest
(``aux``, and written values), which are auxiliary output for JAX. (rule X15, section 10)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.tree_util import Partial

from ..core.graph.modes import Crossing
from ..core.transform import Transformation
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import Tree, TreeDef, Value
from ..util.words import describe_type
from .autodiff import Differentiated
from .call.arguments import Structure
from .call.call import check_function, curried
from .call.enter_leave import rebuild
from .call.outcome import Outcome
from .tangent_trees import flatten_like, shapes_of

VJP = Transformation("vjp", "plait.vjp({f}, {x})", only_values=True)
JVP = Transformation(
    "jvp",
    "plait.jvp({f}, primals=({x},), tangents=({tangents},))",
    "plait.jvp(f, (model, x), (model_tangent, x_tangent))",
    only_values=True,
)
LINEARIZE = Transformation("linearize", "plait.linearize({f}, {x})", only_values=True)


@curried
def vjp(
    f: Any = None,
    *primals: Tree,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.vjp`` for functions of modules: the output, and a function from its cotangent to the gradients.

    Args:
        f: the function. Without it ``vjp`` returns a decorator; without primals, a function of them.
        *primals: the arguments; every leaf of a module among them is differentiated.
        has_aux: whether ``f`` returns a pair of an output and anything.
        graph, graph_updates: as in ``jit``.

    Returns:
        ``(out, vjp_fn)``, or ``(out, vjp_fn, aux)``. ``vjp_fn(cotangent)`` is a tuple with a gradient for each primal,
        of the primal's own type: a module for a module. Values that ``f`` writes are written to the caller's objects
        once, by this call. If ``f`` returns objects, the cotangent has objects (or ``State``\\ s) in their place.

    Raises:
        ArgumentError: a variable is shared, or an input variable is returned.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> out, vjp_fn = plait.vjp(lambda model, x: model(x), model, jnp.ones((4, 2)))
        >>> by_model, by_x = vjp_fn(jnp.ones_like(out))
        >>> type(by_model).__name__, by_model.bias[...].tolist(), by_x.shape
        ('Linear', [4.0, 4.0, 4.0], (4, 2))
    """
    check_function(f, VJP)
    if reduce_axes:
        raise NotImplementedError("vjp: reduce_axes is not supported by plait or by current JAX; omit it")

    @functools.wraps(f)
    def of(*primals: Tree) -> Tree:
        call = _OfValues(VJP, f, primals, has_aux, Crossing(graph, graph_updates))
        values, pull, rest = call.run(jax.vjp, call.inputs)
        out, output = call.finished(values, rest)
        shapes, treedef = jax.tree_util.tree_flatten(shapes_of(values))
        pullback = Partial(_Pullback(call.structure, output, treedef, tuple(shapes)), pull)
        return (out[0], pullback, out[1]) if has_aux else (out, pullback)

    return of(*primals) if primals else of


@curried
def jvp(
    f: Any = None,
    primals: Tree = None,
    tangents: Tree = None,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.jvp`` for functions of modules: the output, and its derivative in one direction.

    Args:
        f: the function. Without it ``jvp`` returns a decorator; without primals, a function of primals and tangents.
        primals: a tuple of arguments.
        tangents: a tuple of directions, one for each primal. For a module, a module of the same structure, or a
            ``State`` with its paths, where missing leaves have tangent zero. Values for integers and random keys are
            ignored, since they have no tangent.
        has_aux: whether ``f`` returns a pair of an output and anything.
        graph, graph_updates: as in ``jit``.

    Returns:
        ``(out, tangent)``, or ``(out, tangent, aux)``; the tangent has the type of the output. Values that ``f``
        writes are written to the caller's objects.

    Raises:
        ArgumentError: a variable is shared, an input variable is returned, or a tangent does not have the leaves of its
            primal.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> direction = jax.tree.map(jnp.ones_like, plait.state(model))
        >>> out, tangent = plait.jvp(lambda model: model.bias * 3, (model,), (direction,))
        >>> tangent.tolist()
        [3.0, 3.0, 3.0]
    """
    check_function(f, JVP)

    @functools.wraps(f)
    def of(primals: Tree, tangents: Tree) -> Tree:
        check_tuple("jvp", "primals", primals, None)
        check_tuple("jvp", "tangents", tangents, len(primals))
        call = _OfValues(JVP, f, tuple(primals), has_aux, Crossing(graph, graph_updates))
        moves = call.tangents()(tuple(tangents))
        values, slopes, rest = call.run(jax.jvp, (call.inputs,), (moves,))
        out, output = call.finished(values, rest)
        tangent = _around(output, slopes)
        return (out[0], tangent, out[1]) if has_aux else (out, tangent)

    return of if primals is None else of(primals, tangents)


@curried
def linearize(
    f: Any = None,
    *primals: Tree,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.linearize`` for functions of modules: the output, and its derivative as a linear function.

    Computes the same as ``jvp``, but evaluates ``f`` only once for any number of directions. Arguments as in ``vjp``.

    Args:
        graph, graph_updates: as in ``jit``.

    Returns:
        ``(out, jvp_fn)``, or ``(out, jvp_fn, aux)``. ``jvp_fn(*tangents)``, with tangents as in ``jvp``, is the
        tangent of the output.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> out, jvp_fn = plait.linearize(lambda model, x: model(x), model, jnp.ones((1, 2)))
        >>> jvp_fn(plait.State({"bias": plait.Param(jnp.arange(3.0))}), jnp.zeros((1, 2))).tolist()
        [[0.0, 1.0, 2.0]]
    """
    check_function(f, LINEARIZE)

    @functools.wraps(f)
    def of(*primals: Tree) -> Tree:
        call = _OfValues(LINEARIZE, f, primals, has_aux, Crossing(graph, graph_updates))
        values, push, rest = call.run(jax.linearize, call.inputs)
        out, output = call.finished(values, rest)
        count, to_tangents = len(primals), call.tangents()

        def jvp_fn(*tangents: Tree) -> Tree:
            check_tuple("linearize", "tangents", tangents, count)
            return _around(output, push(to_tangents(tangents)))

        return (out[0], jvp_fn, out[1]) if has_aux else (out, jvp_fn)

    return of(*primals) if primals else of


def check_tuple(name: str, option: str, given: object, count: int | None) -> None:
    if not isinstance(given, (tuple, list)):
        raise ArgumentTypeError(
            f"{name} takes {option} as a tuple",
            found=describe_type(given),
            expected="a tuple with one entry for each argument of the function",
            do=f"for one argument, write a tuple of one: {option}=({option[:-1]},)",
        )
    if count is not None and len(given) != count:
        raise ArgumentError(
            f"{name} needs one tangent for each primal",
            found=f"{len(given)} {option} for {count} primals",
            expected=f"{count} {option}",
            do="pass zeros for an argument with no tangent: jnp.zeros_like(x)",
        )


class _OfValues(Differentiated):
    """One call as a function of all values of its arguments; only values are carried out."""

    def __init__(
        self,
        name: Transformation,
        f: Callable[..., Tree],
        primals: tuple[Value, ...],
        has_aux: bool,
        crossing: Crossing,
    ) -> None:
        check = functools.partial(self.check_pair, name) if has_aux else None
        options: dict[str, Any] = {
            "has_aux": has_aux,
            "crossing": crossing.values_only(),
            "allow_int": True,
            "check_output": check,
        }
        super().__init__(name, f, primals, {}, tuple(range(len(primals))), **options)
        self.has_aux, self.structure = has_aux, self.call.gathered.structure

    def run(self, derivative: Callable[..., Tree], *inputs: Value) -> Tree:
        """The output, what JAX's derivative of the call returns beside it, and the rest."""
        return self.call.run(functools.partial(derivative, self, has_aux=True), *inputs)

    def finished(self, values: list[Value], rest: tuple[list[Value], Outcome]) -> tuple[Tree, Structure]:
        """Write back the written values. Returns the output, and the structure of its differentiable part."""
        out, outcome = self.finish(values, rest), rest[1]
        assert outcome.output is not None
        return out, outcome.output.children()[0] if self.has_aux else outcome.output

    def tangents(self) -> Callable[[tuple[Tree, ...]], list[Value]]:
        """A function from the tangents of the arguments to those of the inputs. It references no array and no object of
        the caller."""
        structure, what = self.structure, f"{self.call.name}: the tangents"
        shapes = shapes_of(self.call.gathered.values())
        return lambda tangents: [x for part in flatten_like(structure, shapes, (tangents, {}), what) for x in part]


def _around(structure: Structure, leaves: Sequence[Value]) -> Tree:
    """Build the tree of a structure from the values of its objects, followed by its plain leaves."""
    count = sum(graphdef.num_leaves for graphdef in structure.roots)
    return rebuild(structure, leaves[:count], leaves[count:])


@dataclasses.dataclass(frozen=True)
class _Pullback:
    """From the cotangent of the output to the gradients of the arguments; equal for equal structures."""

    arguments: Structure
    output: Structure
    treedef: TreeDef
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    def __call__(self, pull: Callable[..., Tree], cotangent: Tree) -> tuple[Tree, ...]:
        primals = jax.tree_util.tree_unflatten(self.treedef, self.shapes)
        values, plain = flatten_like(self.output, primals, cotangent, "vjp: the cotangent")
        return _around(self.arguments, pull([*values, *plain])[0])[0]
