"""``scan``, ``while_loop`` and ``fori_loop``: loops whose state may be modules.

The values that a loop passes from one iteration to the next are in the port ``Carry``; ``loop_rules.py`` defines
what a body may do with them. (rules X20, X21, U28)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.modes import Crossing
from ..core.nodes.nodes import Static
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import Tree, TreeDef, Value
from ..util.sentinels import NOTHING
from .axis_names import read_axis_name
from .batching import check_axes, check_axes_alone
from .call.body import Body, NamedAsUsers, OfBody
from .call.call import Call, check_function, curried, prefixed_call, prefixes_of
from .call.outcome import Outcome, Traces
from .call.prefixes import Carry, FilterMapping
from .loop_rules import LoopRules

if TYPE_CHECKING:
    from .signatures import ScanOptions
from ..core.transform import Transformation

SCAN = Transformation("scan", of_model="plait.scan(f)(model, x), where f returns the model and an output", loops=True)
_BEFORE = "create the variable before the loop; or use plait.scan, which can stack what each iteration creates"
WHILE_LOOP = Transformation(
    "while_loop",
    "{f}",
    "plait.while_loop(cond_fun, f, model), where f returns the model",
    new_variables=_BEFORE,
    loops=True,
    has_outputs=False,
)
FORI_LOOP = Transformation(
    "fori_loop",
    "{f}",
    "plait.fori_loop(0, n, f, model), where f takes an index and the model, and returns the model",
    new_variables=_BEFORE,
    copies_captured=True,
    loops=True,
    has_outputs=False,
)


P = ParamSpec("P")
R = TypeVar("R")


class _Index:
    """The port of the loop counter."""


@overload
def scan(f: Callable[P, R], **options: Unpack[ScanOptions]) -> Callable[P, R]: ...
@overload
def scan(f: None = None, **options: Unpack[ScanOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@curried
def scan(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    f: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Tree = (Carry, 0),
    out_axes: Tree = (Carry, 0),
    transform_metadata: Mapping[str, object] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.lax.scan`` for functions of modules.

    Args:
        f: the body; without it ``scan`` returns a decorator.
        length: the number of iterations; needed if nothing is scanned.
        reverse, unroll: as in ``jax.lax.scan``.
        in_axes: for each argument: ``Carry`` (at most one: passed from iteration to iteration), an integer (each
            iteration gets a slice; modules are stacked layers), ``None`` (all iterations share it, and start from its
            initial value), or for modules a ``StateAxes`` that combines these by filter. ``in_axes=Carry`` means a
            single argument.
        out_axes: the same for the output, without ``None``.
        transform_metadata: ``{PARTITION_NAME: name}`` names the scanned axis, as in ``vmap``.
        graph, graph_updates: as in ``jit``.

    Returns:
        A function with the outputs of ``f``: the last carry, and outputs stacked along their axes.

    Raises:
        ArgumentError: the axes do not match, sizes differ (the message names both paths), or the references, structure,
            shapes or dtypes of the carry change; the message names the path.

    Warns:
        LostUpdateWarning: a variable with axis ``None`` is written; the write is lost. With ``graph_updates=False`` it
            is kept instead: an iteration starts from the values of the one before.

    Example:
        >>> @plait.scan(in_axes=(plait.Carry, 0), out_axes=plait.Carry)
        ... def forward(x, layer):
        ...     return layer(x)
        >>> @plait.split_rngs(splits=4)
        ... @plait.vmap
        ... def make(rngs):
        ...     return plait.Linear(3, 3, rngs=rngs)
        >>> forward(jnp.ones((2, 3)), make(plait.Rngs(0))).shape
        (2, 3)
    """
    crossing = Crossing(graph, graph_updates)
    options = {"reverse": reverse, "unroll": unroll, "_split_transpose": _split_transpose}
    check_function(f, SCAN)
    f, axis = read_axis_name(f, transform_metadata)
    if in_axes is Carry:
        in_axes = (Carry,)
    axes = {"in_axes": in_axes, "out_axes": out_axes}
    check_axes_alone(SCAN, axes, crossing)
    rules = LoopRules(*_carry_positions(in_axes, out_axes), keeps_writes=True, axis=axis)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = prefixed_call(SCAN, f, args, kwargs, axes, crossing, kinds=(Carry,), rules=rules)
        return call.finish(*scan_ports(call, call.inputs, check_axes(call, length), options))

    return wrapper


def scan_ports(
    call: Call,
    inputs: Sequence[Sequence[Value]],
    size: int,
    options: Mapping[str, object],
    *,
    policy: Any = NOTHING,
    user: Callable[..., Tree] | None = None,
) -> tuple[list[list[Value]], Outcome]:
    """Run a body ``size`` times, on slices of the ports with an axis, carrying the port ``Carry``, which must exist.

    Args:
        inputs: the input ports, as ``call.inputs``.
        options: the options of ``jax.lax.scan``, except the length.
        policy: what ``jax.checkpoint`` keeps of an iteration, if each is recomputed in the backward pass.
        user: the user's function, if it is not that of the call.

    Returns:
        The output ports, and the outcome of an iteration.
    """
    scanned = {port: axis for port, axis in enumerate(call.ports.kinds) if isinstance(axis, int)}
    stacked = {port: _moved(list(inputs[port]), axis, 0) for port, axis in scanned.items()}
    carry = call.ports.kinds.index(Carry)
    shared = {port: list(values) for port, values in enumerate(inputs) if port not in (*scanned, carry)}
    leaves, treedef = jax.tree_util.tree_flatten(shared)
    arrays = [leaf for leaf in leaves if isinstance(leaf, _ARRAYS)]
    constants = tuple(None if isinstance(leaf, _ARRAYS) else Static(leaf) for leaf in leaves)

    def make(body: Body) -> _Step:
        iteration = _Iteration(body, treedef, constants, user)
        # Inside a scan JAX has no need to prevent common subexpressions.
        recompute = policy is not NOTHING
        return _Step(iteration, jax.checkpoint(iteration, prevent_cse=False, policy=policy) if recompute else iteration)

    step = call.cached(("scan", treedef, constants, policy, user), make)
    # If there are arrays, they determine the length, so it may be symbolic.
    told = None if jax.tree_util.tree_leaves(stacked) else size
    scan_with = functools.partial(jax.lax.scan, **{**options, "length": told})
    # Step by step nothing is recomputed: JAX traces what is, once for all iterations, so that none would be named.
    stepwise = functools.partial(scan_with, _Step(step.iteration, step.iteration))
    given = (list(inputs[carry]), arrays), stacked
    (last, _), (slices, outcome) = call.run(functools.partial(scan_with, step), *given, stepwise=stepwise)
    outputs: list[list[Value]] = [[] for _ in call.ports.kinds]
    outputs[carry] = last
    for port, axis in scanned.items():
        outputs[port] = _moved(slices[port], 0, axis)
    return outputs, outcome


_ARRAYS = (jax.Array, np.ndarray, np.generic)


@dataclasses.dataclass(frozen=True)
class _Iteration(OfBody):
    """One iteration of a scan, as a function of what is carried, the arrays that all share, and slices.

    Attributes:
        treedef: the treedef of the shared ports.
        constants: their leaves that are not arrays; ``None`` in place of an array.
        user: as for ``scan_ports``.
    """

    body: Body
    treedef: TreeDef
    constants: tuple[Static | None, ...]
    user: Callable[..., Tree] | None

    def __call__(self, carried: list[Value], arrays: list[Value], slices: dict[int, list[Value]]) -> Tree:
        supply = iter(arrays)
        leaves = [next(supply) if constant is None else constant.value for constant in self.constants]
        carry = self.body.ports.kinds.index(Carry)
        given = {**jax.tree_util.tree_unflatten(self.treedef, leaves), **slices, carry: carried}
        outputs, outcome = self.body([given[port] for port in range(len(self.body.ports.kinds))])
        check_carry_types(self.body, carry, carried, outputs[carry])
        return outputs[carry], {port: outputs[port] for port in slices}, outcome

    def user_function(self) -> Callable[..., Tree]:
        return self.user or self.body.f()

    def names(self) -> tuple[Tree, ...]:
        labels, carry = dict(enumerate(self.body.labels_by_port())), self.body.ports.kinds.index(Carry)
        shared = jax.tree_util.tree_unflatten(self.treedef, range(self.treedef.num_leaves))
        names = [
            label + jax.tree_util.keystr(path)
            for port in shared
            for label, value in zip(labels[port], shared[port], strict=True)
            for path, _ in jax.tree_util.tree_leaves_with_path(value)
        ]
        arrays = [name for name, constant in zip(names, self.constants, strict=True) if constant is None]
        return labels[carry], arrays, {port: labels[port] for port in labels if port != carry and port not in shared}


@dataclasses.dataclass(frozen=True)
class _Step(NamedAsUsers):
    """One step of ``jax.lax.scan``: an iteration, as ``run`` runs it.

    Arrays that all iterations share are carried unchanged, and JAX turns them into constants. They are not constants
    here, because JAX would then reuse the arrays of one call in the next.
    """

    iteration: _Iteration
    run: Callable[..., Tree]

    def __call__(self, handed: tuple[list[Value], list[Value]], slices: dict[int, list[Value]]) -> Tree:
        carried, arrays = handed
        after, out, outcome = self.run(carried, arrays, slices)
        return (after, arrays), (out, outcome)

    def user_function(self) -> Callable[..., Tree]:
        return self.iteration.user_function()

    def names(self) -> tuple[Tree, ...]:
        carried, arrays, slices = self.iteration.names()
        return (carried, arrays), slices


def while_loop(
    cond_fun: Callable[[Any], Value],
    body_fun: Callable[[Any], R],
    init_val: Tree,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """``jax.lax.while_loop`` for a value that may hold modules.

    Args:
        cond_fun: value → whether to continue; it must not change the modules.
        body_fun: value → value, with the same modules, changed in place.
        init_val: the initial value.
        graph, graph_updates: as in ``jit``.

    Returns:
        The last value, which holds the caller's own modules.

    Raises:
        ArgumentError: ``cond_fun`` writes a variable, or the references, structure, shapes or dtypes change.

    Example:
        >>> counter = plait.Variable(jnp.zeros(()))
        >>> def body(counter):
        ...     counter[...] += 2
        ...     return counter
        >>> plait.while_loop(lambda counter: counter[...] < 5, body, counter) is counter, float(counter[...])
        (True, 6.0)
    """
    crossing = Crossing(graph, graph_updates)
    check_function(cond_fun, WHILE_LOOP)
    check_function(body_fun, WHILE_LOOP)
    call = _loop_call(WHILE_LOOP, body_fun, (init_val,), (Carry,), crossing)
    asking = _loop_call(WHILE_LOOP, cond_fun, (init_val,), (Carry,), crossing, output=_Condition)
    turn = call.cached("while_loop", _LoopBody)
    loop = functools.partial(jax.lax.while_loop, asking.cached("while_loop", _LoopCondition), turn)
    last = call.run(loop, call.port(Carry, call.inputs), others=[asking])
    return turn.finish(call, last)


class _Condition:
    """The port of the result of ``cond_fun``."""


@dataclasses.dataclass(frozen=True)
class _LoopCondition(OfBody):
    """Whether a while loop continues."""

    body: Body

    def __call__(self, carried: list[Value]) -> Any:
        outputs, outcome = self.body([carried if kind is Carry else [] for kind in self.body.ports.kinds])
        if outcome.written or not outcome.is_plain:
            labels = self.body.value_labels()
            paths = [labels[position] for position, _ in outcome.written]
            raise ArgumentError(
                "while_loop: cond_fun changed its argument",
                at=", ".join(paths) or None,
                found="a new value" if paths else "a change of structure, or modules as the result",
                expected="a function that only reads and returns a boolean",
                do="make the change in body_fun",
            )
        return outputs[self.body.ports.kinds.index(_Condition)][0]

    def names(self) -> tuple[Tree, ...]:
        return (self.body.labels_by_port()[self.body.ports.kinds.index(Carry)],)


class _LoopBody(OfBody):
    """One iteration of a loop without outputs, of which JAX returns only the carried values."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.traces: Traces[Outcome] = Traces()

    def __call__(self, *given: Value) -> list[Value]:
        carried = given[-1]
        found = {Carry: carried, _Index: [*given[:-1]]}
        outputs, outcome = self.body([found.get(kind, []) for kind in self.body.ports.kinds])
        self.traces.add(carried, outcome)
        carry = self.body.ports.kinds.index(Carry)
        check_carry_types(self.body, carry, carried, outputs[carry])
        return outputs[carry]

    def names(self) -> tuple[Tree, ...]:
        labels, ports = self.body.labels_by_port(), self.body.ports
        return *(labels[ports.kinds.index(_Index)] if _Index in ports.kinds else ()), labels[ports.kinds.index(Carry)]

    def finish(self, call: Call, last: list[Value]) -> Tree:
        """Write back the results of the last iteration."""
        outcome = self.traces.of(last)
        if outcome is None:  # under ``jax.disable_jit``, a loop without an iteration traces nothing
            jax.eval_shape(self, *[0] * (_Index in call.ports.kinds), last)
            outcome = self.traces.of(last)
        assert outcome is not None
        return call.finish([last if kind is Carry else [] for kind in call.ports.kinds], outcome)


def fori_loop(
    lower: Value,
    upper: Value,
    body_fun: Callable[[Any, Any], R],
    init_val: Tree,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """``jax.lax.fori_loop`` for a value that may hold modules.

    Args:
        lower, upper: the first index, and the one after the last.
        body_fun: ``(index, value) -> value``, with the same modules, changed in place.
        init_val: the initial value.
        unroll: as in ``jax.lax.fori_loop``.
        graph, graph_updates: as in ``jit``.

    Returns:
        The last value, which holds the caller's own modules.

    Raises:
        ArgumentError: the references, structure, shapes or dtypes of the value change; names the path.

    Example:
        >>> total = plait.Variable(jnp.zeros((), jnp.int32))
        >>> def body(i, total):
        ...     total[...] += i
        ...     return total
        >>> int(plait.fori_loop(0, 5, body, total)[...])
        10
    """
    check_function(body_fun, FORI_LOOP)
    call = _loop_call(FORI_LOOP, body_fun, (0, init_val), (_Index, Carry), Crossing(graph, graph_updates))
    turn = call.cached("fori_loop", _LoopBody)
    loop = functools.partial(jax.lax.fori_loop, lower, upper, turn, unroll=unroll)
    last = call.run(loop, call.port(Carry, call.inputs))
    return turn.finish(call, last)


def _loop_call(
    name: Transformation,
    f: Callable[..., Tree],
    args: tuple[Tree, ...],
    kinds: Sequence[Hashable],
    crossing: Crossing,
    output: Tree = Carry,
) -> Call:
    ins, outs = prefixes_of(name, {"the value": kinds, "the result": output}, crossing)
    rules = LoopRules(len(args) - 1 if output is Carry else None)
    return Call(name, f, args, ins=ins, outs=outs, crossing=crossing, rules=rules)


def _carry_positions(in_axes: Tree, out_axes: Tree) -> tuple[int | None, int | None]:
    """The positions of the carry.

    Raises:
        ArgumentError: there are several carries, a nested one, or one on one side only; or an output axis is not an
            axis.
    """
    places_in = _places_of_carry(in_axes)
    places_out = _places_of_carry(out_axes)
    for argument, places in (("in_axes", places_in), ("out_axes", places_out)):
        if len(places) > 1 or any(len(place) > 1 for place in places):
            raise ArgumentError(
                f"scan: Found multiple Carry definitions in {argument}, or one below the top",
                found=f"Carry at {', '.join(f'{argument}{jax.tree_util.keystr(place)}' for place in places)}",
                expected="at most one, in place of a whole argument or output",
                do="put all carried values into one argument, such as a tuple",
            )
    if len(places_in) != len(places_out):
        raise ArgumentError(
            "scan: If one of in_axes or out_axes has Carry, the other must also have Carry",
            found=f"in_axes={_show(in_axes)}, out_axes={_show(out_axes)}",
            expected="Carry in both, or in neither",
            do="return the carry and mark it: out_axes=(plait.Carry, 0)",
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(out_axes, is_leaf=lambda x: x is None)[0]:
        values = leaf.values_ if isinstance(leaf, FilterMapping) else (leaf,)
        if None in values or (isinstance(leaf, FilterMapping) and Carry in values):
            raise ArgumentError(
                "scan: Cannot broadcast output state: an output has no axis to stack along",
                at=f"out_axes{jax.tree_util.keystr(path)}",
                found=f"{leaf!r}",
                expected="an integer" + (" for every filter" if isinstance(leaf, FilterMapping) else ", or Carry"),
                do="give the output an axis; a value that does not change need not be returned",
            )
    if not places_in:
        return None, None
    return places_in[0][0].idx, (places_out[0][0].idx if places_out[0] else None)


def _places_of_carry(axes: Tree) -> list[Value]:
    pairs = jax.tree_util.tree_flatten_with_path(axes, is_leaf=lambda x: x is None)[0]
    return [path for path, leaf in pairs if leaf is Carry]


def _show(axes: Tree) -> str:
    return repr(axes).replace(repr(Carry), "Carry")


def _moved(values: list[Value], source: int, destination: int) -> list[Value]:
    if source == destination:
        return values
    return jax.tree_util.tree_map(lambda x: jnp.moveaxis(x, source, destination), values)


def check_carry_types(body: Body, port: int, before: Sequence[Value], after: Sequence[Value]) -> None:
    """Raise if the shapes or dtypes of the carry change.

    Raises:
        ArgumentTypeError: names the path, and both types.
    """
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        old_leaves, old_tree = jax.tree_util.tree_flatten(old)
        new_leaves, new_tree = jax.tree_util.tree_flatten(new)
        changed = old_tree != new_tree
        for x, y in () if changed else zip(old_leaves, new_leaves, strict=True):
            x, y = jax.typeof(x), jax.typeof(y)
            same_dtype = x.dtype == y.dtype or getattr(x, "weak_type", False)
            changed |= x.shape != y.shape or not same_dtype
        if changed:
            raise ArgumentTypeError(
                f"{body.name}: an iteration changed the type of a carried value",
                at=body.labels_by_port()[port][place],
                found=_types(new),
                expected=f"{_types(old)}, as before the iteration",
                do="keep the shape and dtype: cast with .astype(...) in the body, or start with a value of that type",
            )


def _types(value: Value) -> str:
    shown = jax.tree_util.tree_map(lambda x: f"{jax.typeof(x).dtype}{list(jax.typeof(x).shape)}", value)
    return shown if isinstance(shown, str) else repr(shown).replace("'", "")
