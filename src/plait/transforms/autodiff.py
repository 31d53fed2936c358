"""Differentiation: ``grad`` and ``value_and_grad`` with respect to parts of the arguments.

The differentiated values are taken out of the gathered arguments and handed to ``jax.value_and_grad`` as its one
differentiable argument; everything else is closed over. Changes that the function makes (statistics, random counters)
come back as auxiliary output and are written to the caller's objects. (rules U30, X13, X14)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import trace_state
from ..core.filters import to_predicate
from ..core.flatten import Walk, path_of
from ..core.nodes import Kind, kind_of
from ..core.state import FlatState, State
from ..core.variables import Param, Variable, make_variable
from ..core.walks import CachedWalk
from ..errors import ArgumentError, ArgumentTypeError, SharingError
from ..paths import describe_path
from ..typing import FilterLiteral
from ..words import describe_type
from .crossing import Gathered, check_function, gather, is_graph_leaf, run_inside, write_back


@dataclasses.dataclass(frozen=True)
class DiffState:
    """Which leaves of one argument ``grad`` differentiates.

    Args:
        argnum: position of the argument.
        filter: which of its leaves.

    Example:
        >>> loss = lambda model, x: model(x).sum()
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> only_bias = plait.DiffState(0, plait.PathContains("bias"))
        >>> list(plait.grad(loss, argnums=only_bias)(model, jnp.ones((1, 2))))
        ['bias']
    """

    argnum: int
    filter: FilterLiteral = Param


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

    Returns:
        A function that returns the gradient. For a module it is a ``State`` of the differentiated leaves only, with
        the same paths as the model; for a variable a variable; for arrays and pytrees as in JAX; for several argnums
        a tuple. Changes that ``f`` makes to its arguments are made to the caller's objects.

    Raises:
        ArgumentError: a position is given twice, or names no positional argument.
        SharingError: a variable is reached through two arguments, of which one is differentiated and the other is not.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> grads = plait.grad(lambda model, x: model(x).sum())(model, jnp.ones((4, 2)))
        >>> grads["bias"][...].tolist()
        [4.0, 4.0, 4.0]
    """
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    if f is None:
        return functools.partial(grad, **options, reduce_axes=reduce_axes)
    value_and_gradient = _lift("grad", f, reduce_axes=reduce_axes, **options)

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
    if f is None:
        return functools.partial(value_and_grad, **options, reduce_axes=reduce_axes)
    value_and_gradient = _lift("value_and_grad", f, reduce_axes=reduce_axes, **options)

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
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]:
    """The function of (args, kwargs) that returns the value (with aux) and the gradients."""
    check_function(f, name)
    if reduce_axes:
        raise NotImplementedError(f"{name}: reduce_axes is not offered by plait or by current JAX; leave it out")
    single = isinstance(argnums, (int, DiffState))
    requests = _resolve_requests(name, (argnums,) if single else tuple(argnums))

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        gathered = gather((args, kwargs))
        selections = [_select(name, gathered, args, request) for request in requests]
        if len(gathered.roots) > 1:
            _check_sharing(name, args, kwargs, requests)
        # A NumPy array would be written in place, and cannot take a tracer.
        values = [jnp.asarray(value) if type(value) is np.ndarray else value for value in gathered.values()]
        plain = gathered.plain
        picked = [selection.take(values, plain) for selection in selections]

        def pure(differentiated: list[list[Any]]) -> Any:
            inner_values, inner_plain = list(values), list(plain)
            for selection, part in zip(selections, differentiated, strict=True):
                selection.put(inner_values, inner_plain, part)
            aux: list[Any] = []

            def call(*args: Any, **kwargs: Any) -> Any:
                out = f(*args, **kwargs)
                if has_aux:
                    out, rest = _pair(name, out)
                    aux.append(out)
                    return rest
                aux.append(out)
                return None

            result = run_inside(call, gathered.structure, inner_values, inner_plain, name)
            return aux[0], result

        differentiate = jax.value_and_grad(pure, has_aux=True, holomorphic=holomorphic, allow_int=allow_int)
        (value, result), gradients = differentiate(picked)
        aux = write_back(result.outcome, gathered, result.values, result.plain)
        grads = tuple(selection.result(part) for selection, part in zip(selections, gradients, strict=True))
        return ((value, aux) if has_aux else value), (grads[0] if single else grads)

    return run


def _pair(name: str, out: Any) -> tuple[Any, Any]:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise ArgumentTypeError(
            f"{name} with has_aux=True needs a function that returns a pair",
            found=describe_type(out),
            expected="(scalar, aux)",
            do="return a pair, or drop has_aux=True",
        )
    return out


def _resolve_requests(name: str, argnums: tuple[Any, ...]) -> list[DiffState]:
    requests = [argnum if isinstance(argnum, DiffState) else DiffState(argnum) for argnum in argnums]
    numbers = [request.argnum for request in requests]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        raise ArgumentError(
            f"{name} was given an argument number twice",
            found=f"argnums {argnums!r}, with {repeated} repeated",
            expected="each argument once",
            do="join the filters of one argument: DiffState(0, (FilterA, FilterB))",
        )
    return requests


def _check_sharing(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], requests: Sequence[DiffState]) -> None:
    """Refuse a variable that is reached through two arguments, one differentiated and the other not. (rule U25)"""
    filters: dict[Any, Any] = {request.argnum % len(args): to_predicate(request.filter) for request in requests}
    known: dict[int, tuple[bool, str]] = {}
    for label, argument in (*enumerate(args), *kwargs.items()):
        predicate = filters.get(label)
        for root in filter(is_graph_leaf, jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)):
            walk = Walk()
            walk.add(root)
            for leaf, link in zip(walk.leaves, walk.links, strict=True):
                if isinstance(leaf, Variable):
                    path = path_of(link)
                    wanted = predicate is not None and (root is leaf or predicate(path, leaf))
                    place = f"{describe_path(path)} of argument {label}"
                    before, first = known.setdefault(id(leaf), (wanted, place))
                    if before != wanted:
                        raise _shared(name, leaf, {before: first, wanted: place})


def _shared(name: str, variable: Variable[Any], places: dict[bool, str]) -> SharingError:
    return SharingError(
        f"Inconsistent aliasing: {name} was asked to differentiate one variable and to leave it alone",
        at=f"{places[True]} and {places[False]} (the same {type(variable).__name__})",
        found="the first is differentiated, the second is not",
        expected="one treatment of a variable, however many arguments lead to it",
        do="name both arguments in argnums, or pass the variable through one of them",
    )


class _Selection:
    """The differentiated part of one argument: positions among the values (objects) or plain leaves (anything else)."""

    def __init__(self, positions: list[int], plain: list[int], result: Callable[[list[Any]], Any]) -> None:
        self.positions = positions
        self.plain = plain
        self.result = result

    def take(self, values: list[Any], plain: list[Any]) -> list[Any]:
        return [values[i] for i in self.positions] + [plain[i] for i in self.plain]

    def put(self, values: list[Any], plain: list[Any], part: list[Any]) -> None:
        count = len(self.positions)
        for i, value in zip(self.positions, part[:count], strict=True):
            values[i] = value
        for i, value in zip(self.plain, part[count:], strict=True):
            plain[i] = value


def _select(name: str, gathered: Gathered, args: tuple[Any, ...], request: DiffState) -> _Selection:
    """Find the leaves that a request is about."""
    number = request.argnum
    if not -len(args) <= number < len(args):
        raise ArgumentError(
            f"{name} was asked to differentiate an argument that was not passed by position",
            found=f"argnums={number} and {len(args)} positional arguments",
            expected=f"a number below {len(args)}",
            do="pass the argument by position",
        )
    number %= len(args)
    argument = args[number]
    leaves_before = jax.tree_util.tree_leaves(args[:number], is_leaf=is_graph_leaf)
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    root_number = sum(map(is_graph_leaf, leaves_before))
    plain_number = len(leaves_before) - root_number
    if not is_graph_leaf(argument) and not any(map(is_graph_leaf, leaves)):
        structure = jax.tree_util.tree_structure(argument)
        return _Selection(
            [],
            list(range(plain_number, plain_number + len(leaves))),
            lambda part: jax.tree_util.tree_unflatten(structure, part),
        )
    assert gathered.walk is not None
    predicate = to_predicate(request.filter)
    roots = [leaf for leaf in leaves if is_graph_leaf(leaf)]
    parts: list[Any] = []
    positions: list[int] = []
    for offset, root in enumerate(roots):
        chosen = _chosen(gathered.walk, root_number + offset, root, predicate)
        positions += chosen
        parts.append((root, chosen))
    plain = list(range(plain_number, plain_number + len(leaves) - len(roots)))
    walk = gathered.walk

    def result(part: list[Any]) -> Any:
        supply, rest = iter(part), iter(part[len(positions) :])
        gradients = [_gradient(walk, root, chosen, supply) for root, chosen in parts]
        if is_graph_leaf(argument):
            return gradients[0]
        objects = iter(gradients)
        return jax.tree_util.tree_map(
            lambda leaf: next(objects) if is_graph_leaf(leaf) else next(rest), argument, is_leaf=is_graph_leaf
        )

    return _Selection(positions, plain, result)


def _chosen(walk: CachedWalk, number: int, root: Any, predicate: Any) -> list[int]:
    """Positions, among all values, of the leaves of one root that a filter matches."""
    start = sum(walk.counts[:number])
    chosen = []
    paths = walk.paths()
    for position in range(start, start + walk.counts[number]):
        cls, cell = walk.types[position], walk.cells[position]
        probe = cell.raw if cls is None else make_variable(cls, cell.raw, cell.metadata, None)
        if kind_of(root) is Kind.VARIABLE or predicate(paths[position], probe):
            chosen.append(position)
    return chosen


def _gradient(walk: CachedWalk, root: Any, chosen: list[int], supply: Any) -> Any:
    """Gradients with the classes, metadata and paths of the leaves they belong to."""
    paths = walk.paths()
    trace = trace_state.value
    leaves = []
    for position in chosen:
        cls, cell = walk.types[position], walk.cells[position]
        gradient = next(supply)
        leaves.append(gradient if cls is None else make_variable(cls, gradient, cell.metadata, trace))
    if isinstance(root, Variable):
        return leaves[0] if leaves else State({})
    return FlatState.from_sorted(tuple(paths[position] for position in chosen), leaves).to_nested_state()
