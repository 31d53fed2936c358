"""``scan``, ``while_loop`` and ``fori_loop``: loops whose state may be modules.

What a loop hands from one iteration to the next travels in the ``Carry`` lane; the references in it must be the same
before and after every iteration, since the loop's body is traced once. (rules X20, X21, U28)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.modes import graph_updates_mode
from ..core.graph.diff import reference_changes
from ..core.objects.variables import Variable, metadata_key
from ..errors import ArgumentError, ArgumentTypeError
from ..paths import joined
from ..words import describe_type, name_of_class
from .batching import check_axes
from .call.axis_names import read_axis_name
from .call.crossing import Entered, Left, check_function, curried, leave
from .call.lanes import Lifting, Passage, positional
from .call.prefixes import Carry, FilterMapping, Prefix, is_graph_leaf


class _Index:
    """The lane of the loop counter."""


@dataclasses.dataclass(frozen=True)
class LoopPassage(Passage):
    """A loop's body: what is carried comes out as it went in, and nothing else is changed but what has an axis.

    Attributes:
        carry_in, carry_out: position of the carry among the arguments, and in the output (``None``: all of it).
    """

    carry_in: int | None = None
    carry_out: int | None = None

    def check(self, entered: Entered, left: Left, out: Any, variables: list[Any]) -> None:
        self._check_shared(left, variables)
        self._check_carry(entered, out)
        outcome = left.outcome
        if outcome.arguments is None:
            return
        before = [graphdef for graphdef in self.structure.graphdefs if graphdef is not None]
        assert outcome.mapping is not None
        changes = reference_changes(before, outcome.arguments, outcome.mapping)
        for root, path, text, is_new_variable in changes:
            if not isinstance(self.prefixes[root], int) and not is_new_variable:
                raise ArgumentError(
                    f"{self.name}: the structure of what iterations hand on or share changed in an iteration",
                    at=joined(self.labels[root], path),
                    found=text,
                    expected="the same attributes and references before and after",
                    do="make the change before or after the loop; the body of a loop is traced only once",
                )

    def _check_shared(self, left: Left, variables: list[Any]) -> None:
        """What all iterations share may not be written."""
        paths = self.structure.leaf_paths()
        for position in left.positions(variables):
            if position is not None and self.lanes[self.value_lanes[position]] is None:
                root, path = paths[position]
                raise ArgumentError(
                    f"{self.name}: a variable that all iterations share was written",
                    at=joined(self.labels[root], path),
                    found=f"a new value for a {type(variables[position]).__name__} whose axis is None",
                    expected="an argument with axis None is only read",
                    do="carry it, with these axes for the argument: "
                    f"plait.StateAxes({{{name_of_class(type(variables[position]))}: plait.Carry, ...: None}})",
                )

    def _carries(self, entered: Entered, out: Any) -> tuple[Any, Any]:
        """The carry that came in, and the one that was returned.

        Raises:
            ArgumentTypeError: the function did not return a carry and an output.
        """
        before = entered.tree[0][self.carry_in]
        if self.carry_out is None:
            return before, out
        if not isinstance(out, (tuple, list)) or len(out) <= self.carry_out:
            raise ArgumentTypeError(
                f"{self.name}: the function did not return as many outputs as out_axes says",
                found=describe_type(out),
                expected="a tuple of the carry and the outputs",
                do="return (carry, out) or (carry, None), or pass out_axes=plait.Carry",
            )
        return before, out[self.carry_out]

    def replaced(self, entered: Entered, out: Any, variables: list[Any]) -> dict[int, Any]:
        """New variables of the same kind may stand for variables of the carry: states are data, as arrays are."""
        if self.carry_in is None:
            return {}
        before, after = self._carries(entered, out)
        old, new = (jax.tree_util.tree_leaves(tree, is_leaf=is_graph_leaf) for tree in (before, after))
        positions = {id(variable): i for i, variable in enumerate(variables) if variable is not None}
        known = {id(item) for item in entered.index_ref.values()}
        found: dict[int, Any] = {}
        for first, second in zip(old, new, strict=False):
            if first is second or not isinstance(first, Variable) or type(first) is not type(second):
                continue
            position = positions[id(first)]
            written = first._cell.raw is not entered.values[position]
            taken = any(second is variable for variable in found.values())
            same = metadata_key(first._cell) == metadata_key(second._cell)
            if same and not written and not taken and id(second) not in known:
                found[position] = second
        return found

    def step(self, entered: Entered, out: Any) -> Left:
        """A carry is returned as the objects that came in, also where only values are carried out."""
        left = leave(entered, out, self.name)
        if not self.updates and left.outcome.arguments is not None:
            raise ArgumentError(
                f"{self.name} with graph_updates=False was asked to change the structure of what it was given",
                found="new, removed or replaced attributes",
                expected="new values only",
                do="use graph_updates=True",
            )
        return left

    def _check_carry(self, entered: Entered, out: Any) -> None:
        if self.carry_in is None:
            return
        before, after = self._carries(entered, out)
        old, old_tree = jax.tree_util.tree_flatten_with_path(before, is_leaf=is_graph_leaf)
        new, new_tree = jax.tree_util.tree_flatten_with_path(after, is_leaf=is_graph_leaf)
        if old_tree != new_tree:
            raise ArgumentError(
                f"{self.name}: the carry that the function returned does not fit the one it was given",
                found=f"{new_tree}",
                expected=f"{old_tree}",
                do="return the carry with the structure that came in",
            )
        replaced = {id(variable) for variable in self.replaced(entered, out, entered.variables()).values()}
        for (path, first), (_, second) in zip(old, new, strict=True):
            if first is not second and (is_graph_leaf(first) or is_graph_leaf(second)) and id(second) not in replaced:
                raise ArgumentError(
                    f"{self.name}: the references in the carry changed",
                    at=f"the carry{jax.tree_util.keystr(path)}",
                    found=f"another {type(second).__name__} than the {type(first).__name__} that came in",
                    expected="the same object",
                    do="change the object in place (variable[...] = value, plait.update(module, state)), and return it",
                )


@curried
def scan(
    f: Any = None,
    /,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] = {},
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.lax.scan`` for functions of modules.

    Args:
        f: the body; without it ``scan`` returns a decorator.
        length: how many iterations, needed when nothing is scanned.
        reverse, unroll: as in ``jax.lax.scan``.
        in_axes: for each argument: ``Carry`` (at most one: handed from iteration to iteration), an integer (each
            iteration gets a slice; modules are stacked layers), ``None`` (all iterations share it and only read), or
            for modules a ``StateAxes`` that mixes them. ``in_axes=Carry`` stands for a single argument.
        out_axes: the same for the output, without ``None``.
        transform_metadata: ``{PARTITION_NAME: name}`` names the scanned axis, as in ``vmap``.

    Returns:
        A function that returns what ``f`` returns: the last carry, and outputs stacked along their axes.

    Raises:
        ArgumentError: axes that do not fit, sizes that differ (both paths are named), a variable under ``None`` that
            is written, or a carry whose references, structure, shapes or dtypes change; each names the path.

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
    options = {"reverse": reverse, "unroll": unroll, "_split_transpose": _split_transpose}
    check_function(f, "scan")
    f, transform_metadata = read_axis_name(f, transform_metadata)
    if in_axes is Carry:
        in_axes = (Carry,)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    carry_in, carry_out = _carry_positions(in_axes, out_axes)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = positional(f, args, kwargs)
        updates = graph_updates_mode(graph_updates)
        lifting = Lifting(
            "scan",
            f,
            args,
            kwargs,
            Prefix.of("scan", "in_axes", in_axes, updates=updates),
            Prefix.of("scan", "out_axes", out_axes, updates=updates),
            graph=graph,
            graph_updates=graph_updates,
            axis_metadata=transform_metadata,
            passage=functools.partial(LoopPassage, carry_in=carry_in, carry_out=carry_out),
        )
        size = check_axes(lifting, length)
        if size is None:
            raise ArgumentError(
                "scan does not know how many iterations to make",
                found="no argument with an axis, and no length",
                expected="one of the two",
                do="pass the number of iterations: plait.scan(f, length=10)",
            )
        outputs, report = scan_lanes(lifting, lifting.inputs, size, options)
        return lifting.finish(outputs, report)

    return wrapper


def scan_lanes(
    lifting: Lifting, inputs: Sequence[Sequence[Any]], size: int, options: Mapping[str, Any]
) -> tuple[list[list[Any]], Any]:
    """Run the lifted function ``size`` times: on slices of the lanes with an axis, handing on the lane ``Carry``.

    Args:
        inputs: the lanes of what goes in, as ``lifting.inputs``.
        options: of ``jax.lax.scan``, but the length.

    Returns:
        The lanes of what comes out, and the report.
    """
    lanes, labels, name = lifting.lanes, lifting.lane_labels(), lifting.passage.name
    scanned = {lane: axis for lane, axis in enumerate(lanes) if isinstance(axis, int)}
    carry = lanes.index(Carry) if Carry in lanes else None

    def body(carried: list[Any], slices: dict[int, list[Any]]) -> Any:
        given = list(inputs)
        for lane, values in slices.items():
            given[lane] = values
        if carry is not None:
            given[carry] = carried
        outputs, report = lifting.passage(given)
        after = [] if carry is None else outputs[carry]
        check_carry_types(name, [] if carry is None else labels[carry], carried, after)
        return after, ({lane: outputs[lane] for lane in scanned}, report)

    stacked = {lane: _to_front(list(inputs[lane]), axis) for lane, axis in scanned.items()}
    initial: list[Any] = [] if carry is None else list(inputs[carry])
    # Left to the arrays where there are any, the length may be symbolic.
    told = None if jax.tree_util.tree_leaves(stacked) else size
    last, (slices, report) = jax.lax.scan(body, initial, stacked, **{**options, "length": told})
    outputs: list[list[Any]] = [[] for _ in lanes]
    for lane, axis in scanned.items():
        outputs[lane] = _from_front(slices[lane], axis)
    if carry is not None:
        outputs[carry] = last
    return outputs, report


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.lax.while_loop`` for a value that may hold modules.

    Args:
        cond_fun: value → whether to go on; it may not change the modules.
        body_fun: value → value, with the same modules, changed in place.
        init_val: the first value.

    Returns:
        The last value, in which the caller's own modules stand.

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
    check_function(cond_fun, "while_loop")
    check_function(body_fun, "while_loop")
    lifting = _lift_loop("while_loop", body_fun, (init_val,), (Carry,), graph, graph_updates)
    asking = _lift_loop("while_loop", cond_fun, (init_val,), (Carry,), graph, graph_updates, output=None)
    labels = lifting.lane_labels()
    reports = []

    def ask(carried: list[Any]) -> Any:
        outputs, report = asking.passage(_with_lanes(asking, {Carry: carried}))
        if report.outcome.written or not report.outcome.is_plain:
            paths = [asking.value_labels()[i] for i in report.outcome.written]
            raise ArgumentError(
                "while_loop: cond_fun changed what it was given",
                at=", ".join(paths) or None,
                found="a new value" if paths else "a change of structure, or modules as the result",
                expected="a function that only reads and returns a boolean",
                do="make the change in body_fun",
            )
        return outputs[asking.lanes.index(None)][0]

    def run(carried: list[Any]) -> list[Any]:
        outputs, report = lifting.passage(_with_lanes(lifting, {Carry: carried}))
        reports.append(report)
        after = _of_lane(lifting, outputs, Carry)
        check_carry_types("while_loop", _of_lane(lifting, labels, Carry), carried, after)
        return after

    last = jax.lax.while_loop(ask, run, _of_lane(lifting, lifting.inputs, Carry))
    return lifting.finish(_with_lanes(lifting, {Carry: last}), reports[-1])


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.lax.fori_loop`` for a value that may hold modules.

    Args:
        lower, upper: the first index, and the one after the last.
        body_fun: ``(index, value) -> value``, with the same modules, changed in place.
        init_val: the first value.
        unroll: as in ``jax.lax.fori_loop``.

    Returns:
        The last value, in which the caller's own modules stand.

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
    check_function(body_fun, "fori_loop")
    lifting = _lift_loop("fori_loop", body_fun, (0, init_val), (_Index, Carry), graph, graph_updates)
    labels = lifting.lane_labels()
    reports = []

    def run(i: Any, carried: list[Any]) -> list[Any]:
        outputs, report = lifting.passage(_with_lanes(lifting, {Carry: carried, _Index: [i]}))
        reports.append(report)
        after = _of_lane(lifting, outputs, Carry)
        check_carry_types("fori_loop", _of_lane(lifting, labels, Carry), carried, after)
        return after

    last = jax.lax.fori_loop(lower, upper, run, _of_lane(lifting, lifting.inputs, Carry), unroll=unroll)
    return lifting.finish(_with_lanes(lifting, {Carry: last}), reports[-1])


def _lift_loop(
    name: str, f: Any, args: tuple[Any, ...], axes: Any, graph: Any, graph_updates: Any, output: Any = Carry
) -> Lifting:
    updates = graph_updates_mode(graph_updates)
    carried = {} if output is None else {"carry_in": len(args) - 1, "carry_out": None}
    return Lifting(
        name,
        f,
        args,
        {},
        Prefix.of(name, "the value", axes, updates=updates),
        Prefix.of(name, "the result", output, updates=updates),
        graph=graph,
        graph_updates=graph_updates,
        passage=functools.partial(LoopPassage, **carried),
    )


def _with_lanes(lifting: Lifting, values: dict[Any, list[Any]]) -> list[Any]:
    return [values.get(lane, []) for lane in lifting.lanes]


def _of_lane(lifting: Lifting, lanes: Sequence[Any], lane: Any) -> list[Any]:
    return lanes[lifting.lanes.index(lane)] if lane in lifting.lanes else []


def _carry_positions(in_axes: Any, out_axes: Any) -> tuple[int | None, int | None]:
    """Where the carry stands.

    Raises:
        ArgumentError: several, nested, on one side only; or an output axis that is no axis.
    """
    places_in = _places_of_carry(in_axes)
    places_out = _places_of_carry(out_axes)
    for argument, places in (("in_axes", places_in), ("out_axes", places_out)):
        if len(places) > 1 or any(len(place) > 1 for place in places):
            raise ArgumentError(
                f"scan: {argument} has several Carry, or one below the top",
                found=f"Carry at {', '.join(f'{argument}{jax.tree_util.keystr(place)}' for place in places)}",
                expected="at most one, in place of a whole argument or output",
                do="put what is carried into one argument, such as a tuple",
            )
    if len(places_in) != len(places_out):
        raise ArgumentError(
            "scan: Carry stands on one side only",
            found=f"in_axes={_show(in_axes)}, out_axes={_show(out_axes)}",
            expected="Carry in both, or in neither",
            do="return the carry, and mark it: out_axes=(plait.Carry, 0)",
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(out_axes, is_leaf=lambda x: x is None)[0]:
        values = leaf.values_ if isinstance(leaf, FilterMapping) else (leaf,)
        if None in values or (isinstance(leaf, FilterMapping) and Carry in values):
            raise ArgumentError(
                "scan: an output has no axis to be stacked along",
                at=f"out_axes{jax.tree_util.keystr(path)}",
                found=f"{leaf!r}",
                expected="an integer" + (" for every filter" if isinstance(leaf, FilterMapping) else ", or Carry"),
                do="give the output an axis; what does not change need not be returned",
            )
    if not places_in:
        return None, None
    place_in, place_out = places_in[0], places_out[0]
    return (place_in[0].idx if place_in else 0), (place_out[0].idx if place_out else None)


def _places_of_carry(axes: Any) -> list[Any]:
    pairs = jax.tree_util.tree_flatten_with_path(axes, is_leaf=lambda x: x is None)[0]
    return [path for path, leaf in pairs if leaf is Carry]


def _show(axes: Any) -> str:
    return repr(axes).replace(repr(Carry), "Carry")


def _to_front(values: list[Any], axis: int) -> list[Any]:
    if axis == 0:
        return values
    return jax.tree_util.tree_map(lambda x: jnp.moveaxis(x, axis, 0), values)


def _from_front(values: list[Any], axis: int) -> list[Any]:
    if axis == 0:
        return values
    return jax.tree_util.tree_map(lambda x: jnp.moveaxis(x, 0, axis), values)


def check_carry_types(name: str, labels: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Refuse a carry whose shapes or dtypes change.

    Raises:
        ArgumentTypeError: names the path, and both types.
    """
    for label, old, new in zip(labels, before, after, strict=True):
        old_leaves, old_tree = jax.tree_util.tree_flatten(old)
        new_leaves, new_tree = jax.tree_util.tree_flatten(new)
        changed = old_tree != new_tree
        for x, y in () if changed else zip(old_leaves, new_leaves, strict=True):
            x, y = jax.typeof(x), jax.typeof(y)
            same_dtype = x.dtype == y.dtype or getattr(x, "weak_type", False)
            changed |= x.shape != y.shape or not same_dtype
        if changed:
            raise ArgumentTypeError(
                f"{name}: what is carried changed its type in one iteration",
                at=label,
                found=_types(new),
                expected=f"{_types(old)}, as before the iteration",
                do="keep shape and dtype: cast with .astype(...) in the body, or start from a value of that type",
            )


def _types(value: Any) -> str:
    shown = jax.tree_util.tree_map(lambda x: f"{jax.typeof(x).dtype}{list(jax.typeof(x).shape)}", value)
    return shown if isinstance(shown, str) else repr(shown).replace("'", "")
