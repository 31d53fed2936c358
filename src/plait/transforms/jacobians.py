"""``jacrev``, ``jacfwd``, ``hessian`` and ``hvp``: derivatives of all outputs, and second derivatives.

The differentiated values are a port of the call, as for ``grad``; ``jax.jacrev`` or the like is applied to it. A
derivative has the structure of the output, with a gradient in place of each array. If the output contains objects, such
as gradients, it is replaced by their values, since only values have derivatives. ``hessian`` is ``jacfwd`` of
``jacrev``, as in JAX. (rules X13, X30, X31)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.graph.modes import Crossing
from ..core.graph.walks import is_graph_leaf
from ..core.states.state import State
from ..core.transform import Transformation
from ..core.variables.variables import Variable
from ..typing import Tree, Value
from .autodiff import Differentiated
from .call.call import check_function, curried
from .selections import DIFFERENTIATED, DiffState, check_argnums
from .tangent_trees import flatten_like, state_of_values
from .tangents import check_tuple

JACREV, JACFWD, HESSIAN = Transformation("jacrev"), Transformation("jacfwd"), Transformation("hessian")
HVP = Transformation("hvp", "plait.hvp({f}, primals=({x},), tangents=grads)")


@curried
def jacrev(
    f: Any = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.jacrev`` for functions of modules: the Jacobian, with one backward pass per element of the output.

    Args:
        f: a function that returns arrays (with ``has_aux``: a pair of arrays and anything). Modules, variables and
            states in the output are replaced by their values.
        argnums: which arguments to differentiate, as in ``grad``.
        has_aux, holomorphic, allow_int: as in ``jax.jacrev``.
        graph, graph_updates: as in ``jit``.

    Returns:
        A function that returns the Jacobian; with ``has_aux``, ``(jacobian, aux)``. It is the output of ``f`` with a
        gradient, as from ``grad``, in place of each array: for one array and one module, a ``State`` with leaves of
        shape ``output.shape + leaf.shape``. Changes that ``f`` makes to its arguments are made to the caller's objects,
        once.

    Raises:
        ArgumentError, ArgumentTypeError, SharingError: as in ``grad``.
        TypeError: an output is not an array of floating point numbers.

    Warns:
        NothingSelectedWarning: there is nothing to differentiate, or a ``DiffState`` matches nothing.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> jacobian = plait.jacrev(lambda model, x: model(x))(model, jnp.ones(2))
        >>> jacobian["kernel"].shape, jacobian["bias"][...].tolist()
        ((3, 2, 3), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """
    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _lift(JACREV, jax.jacrev, f, argnums, has_aux, Crossing(graph, graph_updates), **options)


@curried
def jacfwd(
    f: Any = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.jacfwd`` for functions of modules: the Jacobian, with one forward pass per element of the input.

    The result is the same as from ``jacrev``; this is faster if there are more outputs than inputs.

    Args:
        f, argnums, has_aux: as in ``jacrev``.
        holomorphic: as in ``jax.jacfwd``.
        graph, graph_updates: as in ``jit``.

    Returns:
        As ``jacrev``.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> by_x = plait.jacfwd(lambda model, x: model(x), argnums=1)(model, jnp.ones(2))
        >>> bool((by_x == model.kernel.T).all())
        True
    """
    return _lift(JACFWD, jax.jacfwd, f, argnums, has_aux, Crossing(graph, graph_updates), holomorphic=holomorphic)


@curried
def hessian(
    f: Any = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.hessian`` for functions of modules: all second derivatives.

    Its size is the square of the number of differentiated values; for a large model, see ``hvp``.

    Args:
        f, argnums, has_aux: as in ``jacrev``; usually ``f`` returns a scalar.
        holomorphic: as in ``jax.hessian``.
        graph, graph_updates: as in ``jit``.

    Returns:
        A function that returns the Hessian; with ``has_aux``, ``(hessian, aux)``. It is the gradient with a gradient in
        place of each array: for a module and a scalar, a ``State`` whose leaf at the path ``(*p, *q)`` has the shape
        ``p.shape + q.shape``. Changes that ``f`` makes to its arguments are made to the caller's objects, once.

    Example:
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> h = plait.hessian(lambda model, x: (model(x) ** 2).sum())(model, jnp.array([[1.0, 3.0]]))
        >>> h["kernel"]["bias"].shape, h["kernel"]["bias"][...].ravel().tolist()
        ((2, 1, 1), [2.0, 6.0])
    """
    crossing = Crossing(graph, graph_updates)
    once = _lift(HESSIAN, jax.jacrev, f, argnums, has_aux, crossing, holomorphic=holomorphic)
    return _lift(HESSIAN, jax.jacfwd, once, argnums, has_aux, crossing, holomorphic=holomorphic)


@curried
def hvp(
    f: Any = None,
    primals: Tree = None,
    tangents: Tree = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """The Hessian times a vector, without the Hessian: forward over reverse mode, at the cost of a few gradients.

    Args:
        f: a function that returns a scalar (with ``has_aux``: a pair of a scalar and anything). Without it ``hvp``
            returns a decorator; without primals, a function of primals and tangents.
        primals: a tuple of all arguments of ``f``.
        tangents: the vector, with the structure of the gradient: for a module, a module or a ``State`` with the paths
            of differentiated leaves, where missing leaves are zero; for several argnums, a tuple.
        argnums: which arguments to differentiate, as in ``grad``.
        has_aux: as in ``grad``.
        graph, graph_updates: as in ``jit``.

    Returns:
        The product, with the structure of the gradient; with ``has_aux``, ``(product, aux)``. Changes that ``f`` makes
        to its arguments are made to the caller's objects, once.

    Raises:
        ArgumentError: the tangents do not match the differentiated arguments; otherwise as in ``grad``.

    Example:
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> loss = lambda model, x: (model(x) ** 2).sum()
        >>> along_bias = plait.State({"bias": plait.Param(jnp.ones(1))})
        >>> plait.hvp(loss, (model, jnp.array([[1.0, 3.0]])), along_bias)["kernel"][...].tolist()
        [[2.0], [6.0]]
    """
    crossing = Crossing(graph, graph_updates)
    check_function(f, HVP)
    check_argnums(HVP, "argnums", argnums, updates=crossing.updates)
    check = functools.partial(Differentiated.check_scalar, HVP, has_aux)

    @functools.wraps(f)
    def of(primals: Tree, tangents: Tree) -> Tree:
        check_tuple(HVP, "primals", primals, None)
        this = Differentiated(
            HVP, f, tuple(primals), {}, argnums, has_aux=has_aux, crossing=crossing, check_output=check
        )
        if not this.single:
            check_tuple(HVP, "tangents", tangents, len(this.numbers))
        moves = _direction(this, (tangents,) if this.single else tangents)

        def gradient(differentiated: list[Value]) -> Tree:
            return jax.value_and_grad(this.scalar, has_aux=True)(differentiated)[::-1]

        def product(inputs: list[Value], moves: list[Value]) -> Tree:
            return jax.jvp(gradient, (inputs,), (moves,), has_aux=True)[1:]

        part, (value, rest) = this.call.run(product, this.inputs, moves)
        out = this.finish([value], rest)
        return (this.gradients(part), out[1]) if has_aux else this.gradients(part)

    return of if primals is None else of(primals, tangents)


def _lift(
    name: Transformation,
    derivative: Callable[..., Tree],
    f: Callable[..., Tree],
    argnums: int | DiffState | Sequence[int | DiffState],
    has_aux: bool,
    crossing: Crossing,
    **options: Any,
) -> Callable[..., Tree]:
    check_function(f, name)
    check_argnums(name, "argnums", argnums, updates=crossing.updates)
    allow_int = options.get("allow_int", False)

    @functools.wraps(f)
    def of_values(*args: Any, **kwargs: Any) -> Any:
        out = f(*args, **kwargs)
        if not has_aux:
            return _as_values(out)
        out, aux = Differentiated.check_pair(name, out)
        return _as_values(out), aux

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        this = Differentiated(
            name, of_values, args, kwargs, argnums, has_aux=has_aux, crossing=crossing, allow_int=allow_int
        )

        def pure(differentiated: list[Value]) -> Tree:
            values, rest = this(differentiated)
            return values, (values, rest)

        def nothing(differentiated: list[Value]) -> Tree:
            values, rest = pure(differentiated)
            return [differentiated for _ in values], rest

        differentiate = derivative(pure, has_aux=True, **options) if this.inputs else nothing
        parts, (values, rest) = this.call.run(differentiate, this.inputs)
        out = this.finish(values, rest)
        tree = jax.tree_util.tree_structure(out[0] if has_aux else out)
        jacobian = jax.tree_util.tree_unflatten(tree, map(this.gradients, parts))
        return (jacobian, out[1]) if has_aux else jacobian

    return wrapper


def _as_values(out: Tree) -> Tree:
    """A tree with modules and variables replaced by their values; a module by a ``State`` with its paths."""

    def values(leaf: Value) -> Value:
        if isinstance(leaf, Variable):
            return leaf.get_raw_value()
        return state_of_values(leaf) if is_graph_leaf(leaf) else leaf

    return jax.tree_util.tree_map(values, out, is_leaf=is_graph_leaf)


def _direction(of: Differentiated, tangents: Sequence[Value]) -> list[Value]:
    """The tangent of each differentiated value, from tangents in the structure of the differentiated arguments."""
    chosen = dict(zip(of.numbers, tangents, strict=True))
    call = of.call
    tree = tuple(chosen[n] if n in chosen else _zeros(argument) for n, argument in enumerate(of.args))
    port = call.ports.kinds.index(DIFFERENTIATED)
    wanted = [own == port for own in call.ports.values]
    leaves = flatten_like(call.gathered.structure, call.gathered.values(), (tree, {}), "hvp: the tangents", wanted)
    return call.ports.grouped(*leaves)[port]


def _zeros(argument: Tree) -> Tree:
    """The placeholder for the tangent of an argument that is not differentiated."""
    return jax.tree_util.tree_map(lambda leaf: State({}) if is_graph_leaf(leaf) else 0, argument, is_leaf=is_graph_leaf)
