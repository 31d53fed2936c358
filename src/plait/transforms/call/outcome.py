"""The outcome of a call: the static description of its changes to the arguments and of its output.

Output values are returned in ports: lists of values that the JAX transform in the middle treats alike. An ``Address``
locates a value: the port and the place in it, or the position among the input values.

``jax.lax.while_loop`` and ``cond`` return no static values, so a kept function remembers what each of its traces did,
by the types of its inputs: a later call with inputs of known types is not traced. (``Traces``)

**Write back**, step 4 of a call: the outcome is applied to the caller's own objects.

Values are written into the same variables, and if the structure changed, nodes are refilled in place. Existing objects
remain the same objects; new ones are created once. What raises on the way is undone. (``core/nodes/journal.py``)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
from jax.tree_util import register_static

from ...core.graph.graphdef import GraphDef, NodeRef, iter_parts
from ...core.graph.unflatten import UNTOUCHED, Builder, plan_of
from ...core.graph.walks import Walk
from ...core.nodes.journal import Journal, trace_of
from ...core.nodes.nodes import Kind, visit
from ...core.nodes.pytree import Pytree
from ...core.traces.guard import check_trace
from ...core.variables.variables import Variable
from ...typing import Tree, Value
from ...util.jax_versions import trace_state
from ...util.static_values import HashableMapping
from .arguments import Gathered, Structure
from .enter_leave import rebuild

T = TypeVar("T")


class Address(NamedTuple):
    """The location of a value: the number of its port, or ``INPUT`` for an input value, and its place there."""

    port: int
    place: int

    def of(self, outputs: Sequence[Sequence[Value]]) -> Value:
        """The value at the address, in output ports."""
        return outputs[self.port][self.place]


INPUT = -1


@register_static
@dataclasses.dataclass(frozen=True)
class Outcome:
    """The static half of a function's results.

    Attributes:
        written: for each variable and array attribute that was written, its position among the input values and the
            address of its new value.
        unwritten: the same for those that were only read, if all values are returned.
        arguments: the graphdefs of the arguments afterwards, or ``None`` if their structure did not change.
        argument_sources: the address of the value of each of their leaves.
        output: the structure of the output, or ``None`` for a plain output that is returned unchanged.
        output_sources: the address of the value of each leaf of its objects.
        plain: the address of each plain leaf of the output.
        moved: outer index → new index, for the objects that existed before.
        attributes: the positions of array attributes; a written one is set on its owner.
    """

    written: tuple[tuple[int, Address], ...] = ()
    unwritten: tuple[tuple[int, Address], ...] = ()
    arguments: tuple[GraphDef, ...] | None = None
    argument_sources: tuple[Address, ...] = ()
    output: Structure | None = None
    output_sources: tuple[Address, ...] = ()
    plain: tuple[Address, ...] = ()
    moved: HashableMapping[int, int] | None = None
    attributes: frozenset[int] = frozenset()

    @property
    def sets_attributes(self) -> bool:
        return bool(self.attributes) and any(position in self.attributes for position, _ in self.written)

    @property
    def returns_objects(self) -> bool:
        return self.output is not None and any(graphdef is not None for graphdef in self.output.graphdefs)

    @property
    def is_plain(self) -> bool:
        """Whether only values of existing variables were written and the output contains no objects."""
        return self.arguments is None and not self.returns_objects and not self.sets_attributes

    def returned_arguments(self, arguments: Structure) -> dict[int, int] | None:
        """Which arguments are returned: index in the output → number of the object among the arguments.

        ``None`` if the output does not consist of only these and new objects, or if the structure changed.
        """
        if self.arguments is not None or self.output is None or self.sets_attributes:
            return None
        if self.moved is None:
            return {}
        moved: dict[Any, int] = dict(self.moved)
        arguments_by_index = {moved.get(root.index): number for number, root in enumerate(arguments.roots)}
        before = set(moved.values())
        found: dict[Any, int] = {}
        for root in self.output.roots:
            if type(root) is NodeRef and root.index in arguments_by_index:
                found[root.index] = arguments_by_index[root.index]
            elif any(part.index in before for part in iter_parts(root)):
                return None
        return found

    def describe(self, address: Address, structure: Structure, roots: Sequence[str]) -> str:
        """The name of the value at an address: ``model.layers[0].mean`` or ``the output[1]['loss']``.

        Args:
            structure, roots: of the arguments before, and the names of their objects.
        """
        for position, where in (*self.written, *self.unwritten):
            if where == address:
                return structure.value_labels(roots)[position]
        if address in self.argument_sources:
            assert self.arguments is not None
            return Structure(None, self.arguments).value_labels(roots)[self.argument_sources.index(address)]
        assert self.output is not None
        pairs = list(zip(self.output.places(), self.output.graphdefs, strict=True))
        objects = [f"the output{jax.tree_util.keystr(path)}" for path, graphdef in pairs if graphdef is not None]
        plain = [f"the output{jax.tree_util.keystr(path)}" for path, graphdef in pairs if graphdef is None]
        if address in self.plain:
            return plain[self.plain.index(address)]
        return self.output.value_labels(objects)[self.output_sources.index(address)]

    def ignoring_writes(self) -> Outcome:
        """The part that must be equal in all branches: without which of the returned values they wrote."""
        return dataclasses.replace(self, written=(), unwritten=tuple(sorted((*self.written, *self.unwritten))))

    def with_written(self, positions: frozenset[int] | set[int]) -> Outcome:
        """The outcome with these of the returned values counted as written, and without the others."""
        both = sorted((*self.written, *self.unwritten))
        written = tuple(entry for entry in both if entry[0] in positions)
        return dataclasses.replace(self, written=written, unwritten=())

    def sources_of_arguments(self) -> tuple[Address, ...]:
        """The address of the value of each leaf of the arguments, after a call that returns all values."""
        if self.arguments is not None:
            return self.argument_sources
        return tuple(address for _, address in sorted((*self.written, *self.unwritten)))


class Traces(Generic[T]):
    """What the traces of a function did, by the types of its inputs."""

    def __init__(self) -> None:
        self._by_types: dict[Hashable, T] = {}

    def add(self, values: Iterable[Value], outcome: T) -> None:
        """Record a trace with these input values."""
        self._by_types[self.types(values)] = outcome

    def of(self, values: Iterable[Value]) -> T | None:
        """The outcome of the trace for values of these types."""
        return self._by_types.get(self.types(values))

    @staticmethod
    def types(values: Iterable[Value]) -> tuple[Hashable, ...]:
        """Shape and dtype of each leaf of each value."""
        return tuple(
            tuple((jax.typeof(leaf).shape, jax.typeof(leaf).dtype) for leaf in jax.tree_util.tree_leaves(value))
            for value in values
        )


def write_back(
    outcome: Outcome, gathered: Gathered, outputs: Sequence[Sequence[Value]], plain: Sequence[Value] | None = None
) -> Tree:
    """Apply an outcome. Returns the output. If it raises, the caller's objects are as before.

    Args:
        outputs: the output ports.
        plain: the output, if it is plain and so not described by the outcome.

    Raises:
        TraceContextError: a variable or module that would be changed belongs to a different trace.
        GraphError: the structure of one layer of a stack would be changed.
        ShapeError: a value for one layer of a stack does not fit.
    """
    written = [(position, address) for position, address in outcome.written if position not in outcome.attributes]
    check_traces([position for position, _ in written], gathered)
    cells = [] if gathered.walk is None else gathered.walk.cells
    returned = {} if outcome.output is None else outcome.returned_arguments(gathered.structure)
    inputs = [cell.raw for cell in cells] if returned is None or outcome.output_sources else []
    with Journal() as journal:
        journal.write_values([cells[position] for position, _ in written], [a.of(outputs) for _, a in written])
        if returned is None:
            return _rebuilt(outcome, gathered, inputs, outputs, journal)
        if outcome.output is None:
            return plain
        values = [inputs[place] if port == INPUT else outputs[port][place] for port, place in outcome.output_sources]
        known = {index: gathered.roots[number] for index, number in returned.items()}
        return rebuild(outcome.output, values, [address.of(outputs) for address in outcome.plain], known)


def check_traces(positions: Sequence[int], gathered: Gathered) -> None:
    """Raise if the variables or array attributes at these positions belong to a different trace.

    Raises:
        TraceContextError: names the object, and both traces.
    """
    walk, here = gathered.walk, trace_state.value
    cells = [] if walk is None else [(walk.types[position], walk.cells[position]) for position in positions]
    if all(cls is not None and (cell.trace is here or cell.metadata["ref"]) for cls, cell in cells):
        return
    leaves = [place for place in visit([*gathered.roots]) if place.first is None and place.kind in _LEAVES]
    for place in (leaves[position] for position in sorted(positions)):
        action = "change the value of"
        while place.owner is not None and not isinstance(place.value, (Variable, Pytree)):
            place, action = place.owner, f"set the attribute {place.key!r} of a"
        if not (isinstance(place.value, Variable) and place.value._cell.metadata["ref"]):
            check_trace(trace_of(place.value, here), place.value, action)


_LEAVES = (Kind.VARIABLE, Kind.REF, Kind.ARRAY)


def _rebuilt(
    outcome: Outcome, gathered: Gathered, inputs: Sequence[Value], outputs: Sequence[Sequence[Value]], journal: Journal
) -> Tree:
    """Apply an outcome with more than values, which are written already. Returns the output."""
    outer = Walk()
    for root in gathered.roots:
        outer.add(root)
    moved, output = outcome.moved, outcome.output
    assert output is not None
    cache = outer.refs.objects_at({i: i for i in outer.refs.values()} if moved is None else moved)
    own = {id(leaf): position for position, leaf in enumerate(outer.leaves) if isinstance(leaf, Variable)}

    def leaf_at(index: int | None, source: Address) -> Value:
        """The leaf of the object with an index; a variable that still holds its own input value is left untouched."""
        if source.port != INPUT:
            return source.of(outputs)
        cached = cache.get(index) if index is not None else None
        is_own = cached is not None and own.get(id(cached)) == source.place
        return UNTOUCHED if is_own else inputs[source.place]

    def with_leaves(graphdefs: Sequence[GraphDef], sources: Sequence[Address]) -> list[tuple[GraphDef, list[Value]]]:
        supply, found = iter(sources), []
        for graphdef in graphdefs:
            pairs = zip(plan_of(graphdef).leaf_defs, itertools.islice(supply, graphdef.num_leaves), strict=True)
            found.append((graphdef, [leaf_at(part.index, source) for part, source in pairs]))
        return found

    arguments, sources = outcome.arguments, outcome.argument_sources
    if arguments is None and outcome.sets_attributes:
        new = {position: address for position, address in outcome.written if position in outcome.attributes}
        arguments = gathered.structure.roots
        sources = tuple(new.get(position, Address(INPUT, position)) for position in range(len(inputs)))
    refilled, returned = with_leaves(arguments or (), sources), with_leaves(output.roots, outcome.output_sources)
    builder = Builder({} if arguments is not None else {**cache}, cache, journal=journal)
    for part in refilled:
        builder.build(*part)
    objects = iter([builder.build(*part) for part in returned])
    return output.unflatten(lambda *_: next(objects), (), [address.of(outputs) for address in outcome.plain])
