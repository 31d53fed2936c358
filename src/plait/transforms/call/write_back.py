"""Step 4 of a call, write back: the outcome is applied to the caller's own objects.

Values are written into the same variables, and if the structure changed, nodes are refilled in place. Existing objects
remain the same objects; new ones are created once. What raises on the way is undone. (``core/objects/journal.py``)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...core.graph.flatten import Walk
from ...core.graph.graphdef import GraphDef
from ...core.graph.plan import plan_of
from ...core.graph.unflatten import UNTOUCHED, Builder
from ...core.objects.journal import Journal, trace_of
from ...core.objects.nodes import Kind
from ...core.objects.pytree import Pytree
from ...core.objects.trace_guard import check_trace
from ...core.objects.variables import Variable
from ...core.objects.visit import visit
from ...util.jax_versions import trace_state
from .gather import Gathered
from .inside import rebuild
from .outcome import INPUT, Address, Outcome


def write_back(outcome: Outcome, gathered: Gathered, outputs: Any, plain: Any = None) -> Any:
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


def _rebuilt(outcome: Outcome, gathered: Gathered, inputs: Sequence[Any], outputs: Any, journal: Journal) -> Any:
    """Apply an outcome with more than values, which are written already. Returns the output."""
    outer = Walk()
    for root in gathered.roots:
        outer.add(root)
    moved, output = outcome.moved, outcome.output
    assert output is not None
    cache = outer.refs.objects_at({i: i for i in outer.refs.values()} if moved is None else moved)
    own = {id(leaf): position for position, leaf in enumerate(outer.leaves) if isinstance(leaf, Variable)}

    def leaf_at(index: int | None, source: Address) -> Any:
        """The leaf of the object with an index; a variable that still holds its own input value is left untouched."""
        if source.port != INPUT:
            return source.of(outputs)
        cached = cache.get(index) if index is not None else None
        is_own = cached is not None and own.get(id(cached)) == source.place
        return UNTOUCHED if is_own else inputs[source.place]

    def with_leaves(graphdefs: Sequence[GraphDef], sources: Sequence[Address]) -> list[tuple[GraphDef, list[Any]]]:
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
