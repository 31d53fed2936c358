"""Lanes: how one call crosses when its values are treated differently.

``vmap``, ``scan``, ``shard_map`` and their like treat each value by its prefix: an axis, a spec, ``Carry``. All values
with one prefix travel together in one *lane*, a list; the transform sees a tuple of lanes and a tuple of prefixes. The
lanes are known before the function is traced, however much it writes or makes, since every prefix that can occur is
written in the transform's arguments; what comes out is sorted into the same lanes:

* a variable that came in goes out by the lane that it came in by, if it was written;
* a new variable goes by the prefix of the argument or output that it belongs to;
* a plain output leaf goes by the output prefix.

The rest is the crossing (``crossing.py``). A static ``Report`` says what is where. (rules X2, X3, U24 to U28)
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import register_static

from ...core.functional.modes import graph_updates_mode
from ...core.graph.axes import drop_axis, has_axis_metadata, put_axis
from ...core.graph.flatten import path_of
from ...core.objects.variables import Variable, make_variable
from ...errors import ArgumentError, ArgumentTypeError, AxisNameMismatchError
from ...paths import joined
from ...words import name_of_class
from .aliasing import Treatment, check_aliasing
from .arguments import argument_name, parameter_names
from .crossing import (
    Entered,
    Gathered,
    Left,
    Outcome,
    Structure,
    call_inside,
    gather_checked,
    leave,
    leave_values_only,
    write_back,
)
from .prefixes import Carry, FilterMapping, NodePrefix, Prefix, choose, is_graph_leaf, values_in

# The lane and the place in it of a value.
Route = tuple[int, int]


@register_static
@dataclasses.dataclass(frozen=True)
class Report:
    """The static half of what comes out of a lifted function.

    Attributes:
        outcome: what to do to the caller's objects.
        values: the route of each returned value of the outcome.
        plain: the route of each plain leaf of the output.
        treedef: of an output without objects.
    """

    outcome: Outcome
    values: tuple[Route, ...]
    plain: tuple[Route, ...]
    treedef: Any


@dataclasses.dataclass(frozen=True)
class Passage:
    """A function of objects as a function of lanes. Equal for equal structures, so that JAX's own caches work.

    Attributes:
        name: the transform, for errors.
        lanes: the prefix of each lane.
        value_lanes, plain_lanes: the lane of each input value and each plain input leaf.
        prefixes: of each root of the arguments.
        labels: what to call each root of the arguments, for errors.
        output: the output prefix.
        axis_metadata: names of the axis that the transform takes away inside, or ``None`` if it changes no rank.
        returned: positions of input values that come out whether written or not, because their buffers are donated.
    """

    name: str
    f: Callable[..., Any]
    structure: Structure
    lanes: tuple[Any, ...]
    value_lanes: tuple[int, ...]
    plain_lanes: tuple[int, ...]
    prefixes: tuple[Any, ...]
    labels: tuple[str, ...]
    output: Prefix
    updates: bool
    axis_metadata: Any = None
    returned: frozenset[int] = frozenset()

    def __call__(self, inputs: Sequence[Sequence[Any]]) -> tuple[tuple[list[Any], ...], Report]:
        """Enter with the lanes, run, leave. Returns the lanes of what comes out, and the report."""
        supplies = [iter(lane) for lane in inputs]
        values = [next(supplies[lane]) for lane in self.value_lanes]
        plain = [next(supplies[lane]) for lane in self.plain_lanes]
        entered = Entered(self.structure, values, plain)
        variables = entered.variables()
        dropped = self._drop_axes(variables, values)
        out = call_inside(self.f, entered)
        left = self._leave(entered, out, variables, dropped)
        self.check(entered, left, out, variables)
        return self._sort(entered, left, out, variables, plain)

    def check(self, entered: Entered, left: Left, out: Any, variables: list[Any]) -> None:
        """What a transform has to say about what the function did; raises."""

    def replaced(self, entered: Entered, out: Any, variables: list[Any]) -> dict[int, Any]:
        """Variables that stand in the returned carry for those that came in: input position → variable."""
        return {}

    def step(self, entered: Entered, out: Any) -> Left:
        """Step 3 of the crossing."""
        return (leave if self.updates else leave_values_only)(entered, out, self.name, self.returned)

    def _leave(self, entered: Entered, out: Any, variables: list[Any], dropped: dict[int, Any]) -> Left:
        if self.axis_metadata is None:
            return self.step(entered, out)
        for position, names in dropped.items():
            self._put_axis(variables[position], self.lanes[self.value_lanes[position]], names)
        left = self.step(entered, out)
        known = {id(variable) for variable in variables}
        candidates = [
            (number, leaf)
            for number, leaf in enumerate(left.walk.leaves)
            if isinstance(leaf, Variable) and id(leaf) not in known and has_axis_metadata(leaf, self.axis_metadata)
        ]
        if not candidates:
            return left
        prefixes = (*self.prefixes, *self._output_prefixes(out))
        axes = [(leaf, left.prefix_of(number, prefixes)) for number, leaf in candidates]
        new = [(leaf, axis) for leaf, axis in axes if isinstance(axis, int)]
        if not new:
            return left
        for leaf, axis in new:
            self._put_axis(leaf, axis, None)
        return self.step(entered, out)

    def _drop_axes(self, variables: list[Any], values: list[Any]) -> dict[int, Any]:
        """Take the axis that is not there inside out of the names of each variable; position → what was dropped."""
        if self.axis_metadata is None:
            return {}
        dropped = {}
        for position, variable in enumerate(variables):
            axis = self.lanes[self.value_lanes[position]]
            if variable is not None and isinstance(axis, int) and has_axis_metadata(variable, self.axis_metadata):
                rank = np.ndim(values[position]) + 1
                try:
                    dropped[position] = drop_axis(variable, axis % rank, self.axis_metadata)
                except AxisNameMismatchError as error:
                    raise self._with_path(error, position) from None
        return dropped

    def _with_path(self, error: AxisNameMismatchError, position: int) -> AxisNameMismatchError:
        """The error of an axis name, with the path of the variable at a position of the values."""
        root, path = self.structure.leaf_paths()[position]
        at = f"{joined(self.labels[root], path)}, {error.parts['at']}"
        return AxisNameMismatchError(f"{self.name}: {error.message}", **{**error.parts, "at": at})

    def _put_axis(self, variable: Variable[Any], axis: int, dropped: Any) -> None:
        rank = np.ndim(variable._cell.raw) + 1
        put_axis(variable, axis % rank, self.axis_metadata, dropped)

    def _output_prefixes(self, out: Any) -> list[Any]:
        """The prefix of each object of the output."""
        leaves = jax.tree_util.tree_leaves(out, is_leaf=is_graph_leaf)
        return [p for p, leaf in zip(self.output.spread(out), leaves, strict=True) if is_graph_leaf(leaf)]

    def _sort(
        self, entered: Entered, left: Left, out: Any, variables: list[Any], plain: list[Any]
    ) -> tuple[tuple[list[Any], ...], Report]:
        """Put what comes out into lanes."""
        lanes: tuple[list[Any], ...] = tuple([] for _ in self.lanes)
        carry = self.lanes.index(Carry) if Carry in self.lanes else None
        places: dict[int, Route] = {}  # input position → route, for what is carried
        carried_plain: list[Route] = []
        replaced = self.replaced(entered, out, variables)
        slots = {id(variable): position for position, variable in replaced.items()}
        if carry is not None:
            for position, lane in enumerate(self.value_lanes):
                if lane == carry:
                    places[position] = (carry, len(lanes[carry]))
                    instead = replaced.get(position, variables[position])
                    lanes[carry].append(_raw(instead, entered.values[position]))
            returns_carry = Carry in self.output.leaves
            for lane, value in zip(self.plain_lanes, plain, strict=True):
                if lane == carry:
                    if returns_carry:
                        carried_plain.append((carry, len(lanes[carry])))
                    lanes[carry].append(value)

        def send(lane: int, value: Any) -> Route:
            if self.axis_metadata is not None:
                _check_output_axis(self.name, self.lanes[lane], value)
            lanes[lane].append(value)
            return lane, len(lanes[lane]) - 1

        self._check_output_aliasing(left, out, variables)
        prefixes = (*self.prefixes, *self._output_prefixes(out))
        value_routes = []
        for origin, position, value in zip(left.origins, left.positions(variables), left.values, strict=True):
            if position is None:
                position = slots.get(id(left.walk.leaves[origin]))
            if position is None:
                prefix = left.prefix_of(origin, prefixes)
                if prefix is Carry:
                    raise self._new_in_carry(left, origin)
                value_routes.append(send(self.lanes.index(prefix), value))
            elif position in places:
                value_routes.append(places[position])
            else:
                value_routes.append(send(self.value_lanes[position], value))
        leaves, treedef = jax.tree_util.tree_flatten(out, is_leaf=is_graph_leaf)
        spread = self.output.spread(out)
        carried = iter(carried_plain)
        plain_routes = []
        for leaf, prefix in zip(leaves, spread, strict=True):
            if is_graph_leaf(leaf):
                continue
            if prefix is Carry:
                route = next(carried)  # the loop has checked that the trees of the carry agree
                lanes[route[0]][route[1]] = leaf
                plain_routes.append(route)
            else:
                plain_routes.append(send(self.lanes.index(prefix), leaf))
        plain_treedef = treedef if left.outcome.output is None else None
        return lanes, Report(left.outcome, tuple(value_routes), tuple(plain_routes), plain_treedef)

    def _check_output_aliasing(self, left: Left, out: Any, variables: list[Any]) -> None:
        """A variable that came in may not go out under another prefix. (rule X3)"""
        if left.outcome.output is None:
            return
        objects = [leaf for leaf in jax.tree_util.tree_leaves(out, is_leaf=is_graph_leaf) if is_graph_leaf(leaf)]
        places = _places(out)
        treatments = [
            Treatment(f"output{place}", leaf, prefix)
            for place, leaf, prefix in zip(places, objects, self._output_prefixes(out), strict=True)
        ]
        known = {
            id(variable): (self.lanes[self.value_lanes[i]], "the arguments")
            for i, variable in enumerate(variables)
            if variable is not None
        }
        check_aliasing(self.name, treatments, known)

    def _new_in_carry(self, left: Left, origin: int) -> ArgumentError:
        leaf = left.walk.leaves[origin]
        path = path_of(left.walk.links[origin])
        labels = itertools.chain(self.labels, itertools.repeat("the output"))
        place = next(joined(label, path) for label, end in zip(labels, left.ends, strict=False) if origin < end)
        return ArgumentError(
            f"{self.name}: the structure of the carry changed in one iteration",
            at=place,
            found=f"a new {type(leaf).__name__}",
            expected="the same variables before and after",
            do="make the variable before the loop, or give it an axis: "
            f"plait.StateAxes({{{name_of_class(type(leaf))}: 0, ...: plait.Carry}})",
        )


def _check_output_axis(name: str, axis: Any, value: Any) -> None:
    """Refuse an axis that an output cannot be given.

    Raises:
        ArgumentError: names the axis and the shape.
    """
    for leaf in jax.tree_util.tree_leaves(value) if isinstance(axis, int) else ():
        rank = np.ndim(leaf) + 1
        if not -rank <= axis < rank:
            raise ArgumentError(
                f"{name}: axis {axis} of the output is out of range",
                at="out_axes",
                found=f"an output of shape {np.shape(leaf)} in one call",
                expected=f"an axis from {-rank} to {rank - 1}",
                do=f"change the axis in out_axes, for example to {0 if axis >= 0 else -1}",
            )


def _raw(variable: Any, value: Any) -> Any:
    return value if variable is None else variable._cell.raw


def _places(tree: Any) -> list[str]:
    """Where the objects of a tree stand."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_graph_leaf)
    return [jax.tree_util.keystr(path) for path, leaf in pairs if is_graph_leaf(leaf)]


class Lifting:
    """One call, taken apart into lanes (outside).

    Args:
        name: the transform.
        f: the function.
        args, kwargs: the arguments, static ones wrapped in ``Static``.
        ins: the prefix of ``(args, kwargs)``.
        outs: the prefix of the output.
        updates: whether structural changes are carried out.
        axis_metadata: see ``Passage``.
        passage: makes the passage; a transform with rules of its own has a class of its own.

    Attributes:
        passage: the static half; called inside the transform.
        inputs: the lanes of what goes in.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        ins: Prefix,
        outs: Prefix,
        *,
        graph: bool | None = None,
        graph_updates: bool | None = None,
        axis_metadata: Mapping[str, Any] | None = None,
        passage: Callable[..., Passage] = Passage,
    ) -> None:
        tree = (args, dict(kwargs))
        updates = graph_updates_mode(graph_updates)
        self.gathered = gathered = gather_checked(name, f, tree, graph, updates)
        pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_graph_leaf)
        names = parameter_names(f)
        labels = [argument_name(path, names) for path, _ in pairs]
        spread = ins.spread(args) + [_kwarg_prefix(name, label) for label in labels[_count(args) :]]
        objects = [is_graph_leaf(leaf) for _, leaf in pairs]
        self.root_labels = [label for label, is_object in zip(labels, objects, strict=True) if is_object]
        self.plain_labels = [label for label, is_object in zip(labels, objects, strict=True) if not is_object]
        prefixes = tuple(p for p, is_object in zip(spread, objects, strict=True) if is_object)
        plain_prefixes = [p for p, is_object in zip(spread, objects, strict=True) if not is_object]
        if len(prefixes) > 1 and len(set(prefixes)) > 1:
            roots = zip(self.root_labels, gathered.roots, prefixes, strict=True)
            check_aliasing(name, [Treatment(*root) for root in roots], {})
        lanes = tuple(values_in([*spread, *outs.leaves]))
        self.value_lanes = [lanes.index(p) for p in value_prefixes(gathered, prefixes, self.root_labels)]
        self.plain_lanes = [lanes.index(p) for p in plain_prefixes]
        metadata = None if axis_metadata is None else FrozenMetadata(axis_metadata)
        self.passage = passage(
            name,
            f,
            gathered.structure,
            lanes,
            tuple(self.value_lanes),
            tuple(self.plain_lanes),
            prefixes,
            tuple(self.root_labels),
            outs,
            updates,
            metadata,
        )
        inputs: tuple[list[Any], ...] = tuple([] for _ in lanes)
        for lane, value in zip(self.value_lanes, gathered.values(), strict=True):
            inputs[lane].append(value)
        for lane, value in zip(self.plain_lanes, gathered.plain, strict=True):
            inputs[lane].append(value)
        self.inputs = inputs

    @property
    def lanes(self) -> tuple[Any, ...]:
        """The prefix of each lane."""
        return self.passage.lanes

    def labelled(self) -> list[tuple[str, Any, Any]]:
        """Every input as (where it stands, its prefix, its value)."""
        found = [
            (label, self.lanes[lane], value)
            for label, lane, value in zip(self.value_labels(), self.value_lanes, self.gathered.values(), strict=True)
        ]
        plain = zip(self.plain_labels, self.plain_lanes, self.gathered.plain, strict=True)
        return found + [(label, self.lanes[lane], value) for label, lane, value in plain]

    def lane_labels(self) -> list[list[str]]:
        """Where each input of each lane stands."""
        labels: list[list[str]] = [[] for _ in self.lanes]
        for lane, label in zip(
            self.value_lanes + self.plain_lanes, self.value_labels() + self.plain_labels, strict=True
        ):
            labels[lane].append(label)
        return labels

    def value_labels(self) -> list[str]:
        """Where each input value stands: ``model.layers.kernel``."""
        return value_labels(self.gathered, self.root_labels)

    def finish(self, outputs: Sequence[Sequence[Any]], report: Report) -> Any:
        """Write back what came out (step 4). Returns the output."""
        values = [outputs[lane][place] for lane, place in report.values]
        plain: Any = [outputs[lane][place] for lane, place in report.plain]
        if report.outcome.output is None:
            plain = jax.tree_util.tree_unflatten(report.treedef, plain)
        return write_back(report.outcome, self.gathered, values, plain)


class FrozenMetadata(Mapping[str, Any]):
    """The metadata that a transform has for its axis, as a static value."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._items = dict(mapping)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._items.items(), key=repr)))


def _count(args: Any) -> int:
    return len(jax.tree_util.tree_leaves(args, is_leaf=is_graph_leaf))


def _kwarg_prefix(name: str, label: str) -> Any:
    raise ArgumentTypeError(
        f"{name} cannot tell which prefix a keyword argument has",
        at=label,
        found="a keyword argument that the signature does not resolve to a position",
        expected="positional arguments",
        do="pass it by position",
    )


def value_prefixes(gathered: Gathered, prefixes: tuple[Any, ...], roots: Sequence[str]) -> Iterator[Any]:
    """The prefix value of each input value."""
    walk = gathered.walk
    if walk is None:
        return
    filtered = any(isinstance(prefix, (FilterMapping, NodePrefix)) for prefix in prefixes)
    paths = walk.paths() if filtered else None
    position = 0
    for prefix, count, root in zip(prefixes, walk.counts, roots, strict=True):
        if not isinstance(prefix, (FilterMapping, NodePrefix)):
            yield from [prefix] * count
            position += count
            continue
        assert paths is not None
        for _ in range(count):
            cls, cell = walk.types[position], walk.cells[position]
            probe = cell.raw if cls is None else make_variable(cls, cell.raw, cell.metadata, None)
            yield choose(prefix, paths[position], probe, root)
            position += 1


def value_labels(gathered: Gathered, roots: Sequence[str]) -> list[str]:
    """Where each input value stands, for roots of these names: ``model.layers.kernel``."""
    walk = gathered.walk
    if walk is None:
        return []
    owners = [label for label, count in zip(roots, walk.counts, strict=True) for _ in range(count)]
    return [joined(owner, path) for owner, path in zip(owners, walk.paths(), strict=True)]


def positional(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keyword arguments moved to positions, as far as the signature tells. (rule X1)"""
    if not kwargs:
        return args, kwargs
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs
