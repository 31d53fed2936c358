"""Differentiation: ``grad`` and ``value_and_grad`` with respect to parts of the arguments.

The differentiated values are a port of the call, and the only differentiable argument of ``jax.value_and_grad``;
everything else is closed over. The function's changes (statistics, random counters) are returned as auxiliary output
and written to the caller's objects. (rules U30, X13, X14)

With structural updates, a module's gradient is a ``State`` of the chosen leaves; if only values are carried, it is a
module with a gradient for every leaf. (section 10)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.graphdef import GraphDef, VariableDef
from ..core.graph.modes import Crossing
from ..core.graph.untrained import warn_of_untrained
from ..core.graph.walks import is_graph_leaf
from ..core.rngs import RngState
from ..core.states.state import FlatState, State
from ..core.variables.variable_kinds import Param
from ..core.variables.variables import make_variable
from ..errors import ArgumentTypeError
from ..typing import Tree, Value
from ..util.jax_versions import trace_state
from ..util.notices import warn_nothing_selected
from ..util.sentinels import Sentinel
from ..util.words import describe_type, name_of_class
from .call.arguments import parameter_names, positional
from .call.body import NO_RULES, CheckedOutput, Propagation
from .call.call import Call, check_function, curried
from .call.enter_leave import rebuild
from .call.prefixes import Prefix
from .selections import (
    DIFFERENTIATED,
    DiffState,
    check_argnums,
    number_of,
    spread_filters,
)

if TYPE_CHECKING:
    from .signatures import GradOptions
from ..core.transform import Transformation

GRAD = Transformation(
    "grad",
    of_model="plait.grad(f)(model, x), with argnums=1 for the gradient with respect to x alone",
    copies_captured=True,
)
VALUE_AND_GRAD = Transformation("value_and_grad", copies_captured=True)


P = ParamSpec("P")
R = TypeVar("R")

# The ports of the output of a differentiated function.
VALUE = Sentinel(__name__, "VALUE", "the value")
AUXILIARY = Sentinel(__name__, "AUXILIARY", "beside the value")


@overload
def grad(
    f: Callable[P, tuple[Any, R]], *, has_aux: Literal[True], **options: Unpack[GradOptions]
) -> Callable[P, tuple[Any, R]]: ...
@overload
def grad(f: Callable[P, Any], *, has_aux: bool = False, **options: Unpack[GradOptions]) -> Callable[P, Any]: ...
@overload
def grad(
    f: None = None, *, has_aux: bool = False, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@curried
def grad(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    f: Any = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.grad`` for functions of modules: the gradient of a scalar with respect to the ``Param`` leaves.

    Args:
        f: a function that returns a scalar (with ``has_aux``: a pair of a scalar and anything).
        argnums: which arguments to differentiate: positions, or ``DiffState``s that select other leaves.
        has_aux, holomorphic, allow_int: as in ``jax.grad``.
        graph, graph_updates: as in ``jit``.

    Returns:
        A function that returns the gradient. For a module it is a ``State`` of the differentiated leaves only, with
        the same paths as the model; for a variable a variable; for arrays and pytrees as in JAX; for several argnums
        a tuple. Changes that ``f`` makes to its arguments are made to the caller's objects.

    Raises:
        ArgumentError: a position occurs twice, or a ``DiffState`` is passed but only values are carried.
        ArgumentTypeError: a position has no positional argument.
        SharingError: a variable is part of two arguments, only one of which is differentiated.

    Warns:
        NothingSelectedWarning: there is nothing to differentiate, or a ``DiffState`` matches nothing.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> grads = plait.grad(lambda model, x: model(x).sum())(model, jnp.ones((4, 2)))
        >>> grads["bias"][...].tolist()
        [4.0, 4.0, 4.0]
    """

    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _lift(GRAD, f, argnums, has_aux, Crossing(graph, graph_updates), reduce_axes, **options)


@overload
def value_and_grad(
    f: Callable[P, R], *, has_aux: bool = False, **options: Unpack[GradOptions]
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    f: None = None, *, has_aux: bool = False, **options: Unpack[GradOptions]
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
@curried
def value_and_grad(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    f: Any = None,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.value_and_grad`` for functions of modules; arguments as in ``grad``.

    Args:
        graph, graph_updates: as in ``jit``.

    Returns:
        A function that returns ``(value, gradient)``; with ``has_aux``, ``((value, aux), gradient)``.

    Example:
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> loss, grads = plait.value_and_grad(lambda m: (m.bias ** 2).sum())(model)
        >>> float(loss), list(grads)
        (0.0, ['bias', 'kernel'])
    """

    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _lift(VALUE_AND_GRAD, f, argnums, has_aux, Crossing(graph, graph_updates), reduce_axes, **options)


def _lift(
    name: Transformation,
    f: Callable[..., Tree],
    argnums: int | DiffState | Sequence[int | DiffState],
    has_aux: bool,
    crossing: Crossing,
    reduce_axes: Sequence[Hashable],
    **options: Any,
) -> Callable[..., Tree]:
    check_function(f, name)
    if reduce_axes:
        raise NotImplementedError(f"{name}: reduce_axes is not supported by plait or by current JAX; omit it")
    check_argnums(name, "argnums", argnums, updates=crossing.updates)
    rules: dict[str, Any] = {"has_aux": has_aux, "allow_int": options["allow_int"], "crossing": crossing}
    rules["check_output"] = functools.partial(Differentiated.check_scalar, name, has_aux)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        of = Differentiated(name, f, args, kwargs, argnums, **rules)
        (value, rest), part = of.call.run(jax.value_and_grad(of.scalar, has_aux=True, **options), of.inputs)
        out, grads = of.finish([value], rest), of.gradients(part)
        if name == "value_and_grad":
            return out, grads
        return (grads, out[1]) if has_aux else grads

    return wrapper


class Differentiated:
    """One call as a function of its differentiated values, which are one port; all other values are closed over.

    Attributes:
        call: the call.
        argnums: the chosen arguments.
        single: whether one was chosen, not a tuple.
        numbers: their positions.
        inputs: the differentiated values.
    """

    def __init__(
        self,
        name: Transformation,
        f: Callable[..., Tree],
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree],
        argnums: Any,
        *,
        has_aux: bool,
        crossing: Crossing,
        allow_int: bool = False,
        check_output: Callable[[Tree], object] | None = None,
    ) -> None:
        self.single = not isinstance(argnums, (tuple, list))
        if kwargs and any(number_of(each) >= len(args) for each in ((argnums,) if self.single else argnums)):
            args, kwargs = positional(f, args, kwargs)
        updates = crossing.updates
        given = check_argnums(name, "argnums", argnums, updates=updates, count=len(args))
        self.args, self.states = args, updates
        self.numbers = [number_of(argnum) % len(args) for argnum in given]
        default = Param if updates else ...
        filters = [argnum.filter if isinstance(argnum, DiffState) else default for argnum in given]
        ins = spread_filters(args, kwargs, dict(zip(self.numbers, filters, strict=True)))
        outs = Prefix.of(name, "the output", (VALUE, AUXILIARY) if has_aux else VALUE, updates=True)
        options: dict[str, Any] = {
            "kinds": (DIFFERENTIATED,),
            "propagation": Propagation(writes=AUXILIARY, returns_inputs=True),
            "rules": NO_RULES if check_output is None else CheckedOutput(check_output),
        }
        self.call = call = Call(name, f, args, kwargs, ins=ins, outs=outs, crossing=crossing, **options)
        if updates:
            _warn_of_nothing(name, call, len(args), given)
        if not allow_int:
            _check_differentiable(name, call)
        # A NumPy array would be written in place, and cannot hold a tracer.
        self._ports = [[jnp.asarray(x) if type(x) is np.ndarray else x for x in values] for values in call.inputs]
        self.inputs = call.port(DIFFERENTIATED, self._ports)

    def __call__(self, differentiated: list[Value]) -> tuple[list[Value], Value]:
        """The output of the function, and the rest: the auxiliary output and the outcome."""
        ports = zip(self.call.ports.kinds, self._ports, strict=True)
        outputs, outcome = self.call.body([differentiated if kind is DIFFERENTIATED else port for kind, port in ports])
        return self.call.port(VALUE, outputs), (self.call.port(AUXILIARY, outputs), outcome)

    def scalar(self, differentiated: list[Value]) -> tuple[Value, Value]:
        """The same for a function that returns a scalar."""
        values, rest = self(differentiated)
        return values[0], rest

    def finish(self, values: list[Value], rest: Value) -> Tree:
        """Write back the written values. Returns the output."""
        beside, outcome = rest
        found: dict[Hashable, Sequence[Value]] = {VALUE: values, AUXILIARY: beside}
        return self.call.finish([found.get(kind, []) for kind in self.call.ports.kinds], outcome)

    def gradients(self, part: Sequence[Value]) -> Tree:
        """One item per differentiated value, in the structure of the differentiated arguments."""
        grads = _gradients_of(self.call, self.numbers, part, states=self.states)
        return grads[0] if self.single else grads

    @staticmethod
    def check_scalar(name: str, has_aux: bool, out: Tree) -> None:
        """Raise if the output has no gradient.

        Raises:
            ArgumentTypeError: the output is not a scalar, or not a pair of a scalar and aux.
        """
        out = Differentiated.check_pair(name, out)[0] if has_aux else out
        leaves = jax.tree_util.tree_leaves(out, is_leaf=is_graph_leaf)
        is_array = len(leaves) == 1 and leaves[0] is out and not is_graph_leaf(out)
        if is_array and np.shape(out) == ():
            return
        raise ArgumentTypeError(
            f"Gradient only defined for scalar-output functions: {name} needs a function that returns a scalar",
            found=f"an array of shape {np.shape(out)}" if is_array else describe_type(out),
            expected="an array of shape ()",
            do="reduce the output, for example with .mean()"
            if is_array
            else "return variable[...] instead of a variable, or pass has_aux=True and return (scalar, anything)",
        )

    @staticmethod
    def check_pair(name: str, out: Tree) -> tuple[Tree, Tree]:
        """The pair that a function with ``has_aux=True`` returned.

        Raises:
            ArgumentTypeError: it is not a pair.
        """
        if not (isinstance(out, tuple) and len(out) == 2):
            raise ArgumentTypeError(
                f"{name} with has_aux=True needs a function that returns a pair",
                found=describe_type(out),
                expected="(output, aux)",
                do="return (output, aux), or remove has_aux=True",
            )
        return out


def _check_differentiable(name: str, call: Call) -> None:
    """Raise if a variable with integers would be differentiated.

    Raises:
        ArgumentTypeError: names the path and the type.
    """
    port = call.ports.kinds.index(DIFFERENTIATED)
    for position, value in enumerate(call.gathered.values()):
        for leaf in jax.tree_util.tree_leaves(value) if call.ports.values[position] == port else ():
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or dtype == jax.dtypes.float0:
                continue
            do = "pass allow_int=True" if name in ("grad", "value_and_grad", "jacrev") else "convert it: .astype(float)"
            if call.body.propagation.structural:  # otherwise there is no DiffState
                arguments = enumerate(call.gathered.structure.arguments())
                number = next(number for number, argument in arguments if position in argument.values)
                do = (
                    f"exclude it: argnums=plait.DiffState({number}, plait.All(plait.Param, "
                    "lambda path, v: jnp.issubdtype(v.dtype, jnp.inexact))), use a variable type other than Param, or "
                    + do
                )
            raise ArgumentTypeError(
                f"{name} cannot differentiate with respect to integers",
                at=call.body.value_labels()[position],
                found=f"{dtype}{list(leaf.shape)}",
                expected="floating point numbers",
                do=do,
            )


def _warn_of_nothing(name: str, call: Call, count: int, given: Sequence[int | DiffState]) -> None:
    """Warn if nothing is differentiated, if a given filter matches nothing, or if a part can never be differentiated.

    Args:
        count: the number of positional arguments.

    Warns:
        NothingSelectedWarning: names the argument, the filter, and the existing kinds.
        UntrainedPartWarning: names the path.
    """
    walk, arguments, port = (
        call.gathered.walk,
        call.gathered.structure.arguments(),
        call.ports.kinds.index(DIFFERENTIATED),
    )
    if walk is None:
        return
    for root, graphdef in zip(call.gathered.roots, call.gathered.structure.roots, strict=True):
        warn_of_untrained(name, root, graphdef)
    asked = []
    for argnum in given:
        structure, values, plain = arguments[number_of(argnum) % count]
        asked.append((argnum, structure, values, not plain and all(call.ports.values[i] != port for i in values)))
    are_all_empty = all(is_empty for *_, is_empty in asked)
    for argnum, structure, values, is_empty in asked:
        if is_empty and structure.roots and (are_all_empty or isinstance(argnum, DiffState)):
            number, kinds = number_of(argnum) % count, walk.types[values.start : values.stop]
            warn_nothing_selected(
                name,
                argnum.filter if isinstance(argnum, DiffState) else Param,
                kinds,
                at=f"argument {parameter_names(call.f).at(number)}",
                so="so the gradient is empty",
                do=_what_to_select(number, kinds),
            )


def _what_to_select(number: int, kinds: Sequence[type | None]) -> str:
    numeric = [kind for kind in kinds if kind is not None and not issubclass(kind, RngState)]
    if not numeric and None in kinds:
        return "store what is to be differentiated in plait.Param: self.weight = plait.Param(array)"
    if not numeric:
        return f"differentiate with respect to another argument: argnums={0 if number else 1}"
    kind = Param if Param in numeric else numeric[0]
    return f"select variables that the argument has: argnums=plait.DiffState({number}, {name_of_class(kind)})"


def _gradients_of(call: Call, wanted: Sequence[int], part: Sequence[Value], *, states: bool) -> tuple[Tree, ...]:
    """The gradients of some arguments.

    Args:
        wanted: their positions.
        part: the gradients, in the order of the differentiated port.
        states: whether the gradient of a module is a ``State``; otherwise it is a module.
    """
    port, supply = call.ports.kinds.index(DIFFERENTIATED), iter(part)
    values = [next(supply) if own == port else None for own in call.ports.values]
    plain = [next(supply) if own == port else None for own in call.ports.plain]
    structure = call.gathered.structure
    arguments = structure.arguments()
    if not states and any(arguments[number].structure.roots for number in wanted):
        gradients = rebuild(structure, values, plain)[0]
        return tuple(gradients[number] for number in wanted)

    def gradient(graphdef: GraphDef, positions: list[int]) -> Tree:
        """Gradients with the classes, metadata and paths of their leaves."""
        walk, trace = call.gathered.walk, trace_state.value
        assert walk is not None
        chosen = [position for position in positions if call.ports.values[position] == port]
        leaves, paths = [], walk.paths()
        for position in chosen:
            cls, cell, value = walk.types[position], walk.cells[position], values[position]
            leaves.append(value if cls is None else make_variable(cls, value, cell.metadata, trace))
        if isinstance(graphdef, VariableDef):
            return leaves[0] if leaves else State({})
        return FlatState.from_sorted_keys_values(tuple(paths[i] for i in chosen), leaves).to_nested_state()

    found = [arguments[number] for number in wanted]
    return tuple(each.structure.unflatten(gradient, each.values, [plain[i] for i in each.plain]) for each in found)
