"""Step 4 of a call, write back: the outcome is applied to the caller's own objects.

Values are written into the same variables, and if the structure changed, nodes are refilled in place. Existing objects
remain the same objects; new ones are created once. All checks are made before the first write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...core.graph.flatten import Walk
from ...core.graph.graphdef import GraphDef
from ...core.graph.identities import own_objects
from ...core.graph.plan import plan_of
from ...core.graph.refills import UNTOUCHED, check_refill
from ...core.graph.unflatten import Builder
from ...core.objects.variables import Variable
from .enter import rebuild
from .gather import Gathered
from .guards import check_writable
from .outcome import INPUT, Address, Outcome, at

T = TypeVar("T")


def completed(write: Callable[[], T]) -> T:
    """Run a function that writes to the caller's objects; if it is interrupted, as by Ctrl-C, all is written first."""
    try:
        return write()
    except BaseException:
        write()
        raise


def write_back(outcome: Outcome, gathered: Gathered, outputs: Any, plain: Any = None) -> Any:
    """Apply an outcome. Returns the output.

    Args:
        outputs: the output ports.
        plain: the output, if it is plain and so not described by the outcome.

    Raises:
        TraceContextError: a variable or module that would be changed belongs to a different trace.
        GraphError: the structure of one layer of a stack would be changed.
    """
    check_writable([i for i, _ in outcome.written if i not in outcome.attributes], gathered)
    cells = [] if gathered.walk is None else gathered.walk.cells
    returned = {} if outcome.output is None else outcome.returned_arguments(gathered.structure)
    if returned is None:
        return _rebuilt(outcome, gathered, outputs)
    inputs = gathered.values() if outcome.output_sources else []

    def write_values() -> None:
        for position, (port, place) in outcome.written:
            cells[position].raw = outputs[port][place]

    completed(write_values)
    if outcome.output is None:
        return plain
    values = [inputs[place] if port == INPUT else outputs[port][place] for port, place in outcome.output_sources]
    known = {index: gathered.roots[number] for index, number in returned.items()}
    return rebuild(outcome.output, values, [at(outputs, address) for address in outcome.plain], known)


def replace_value(gathered: Gathered, position: int, value: Any) -> None:
    """Store an equal value, such as a resharded one, in the caller's own variable at a position."""
    assert gathered.walk is not None
    gathered.walk.cells[position].raw = value


def _rebuilt(outcome: Outcome, gathered: Gathered, outputs: Any) -> Any:
    """Apply an outcome with more than values. Returns the output.

    Raises:
        TraceContextError: an object that would be changed belongs to a different trace; nothing is written.
    """
    cells = [] if gathered.walk is None else gathered.walk.cells
    inputs = [cell.raw for cell in cells]
    outer = Walk()
    for root in gathered.roots:
        outer.add(root)
    moved, output = outcome.moved, outcome.output
    assert output is not None
    cache = own_objects(outer.refs, {i: i for i in outer.refs.values()} if moved is None else moved)
    own = {id(leaf): position for position, leaf in enumerate(outer.leaves) if isinstance(leaf, Variable)}

    def leaf_at(index: int | None, source: Address) -> Any:
        """The leaf of the object with an index; a variable that still holds its own input value is left untouched."""
        if source.port != INPUT:
            return at(outputs, source)
        cached = cache.get(index) if index is not None else None
        is_own = cached is not None and own.get(id(cached)) == source.place
        return UNTOUCHED if is_own else inputs[source.place]

    def with_leaves(graphdefs: Sequence[GraphDef], sources: Sequence[Address]) -> list[tuple[GraphDef, list[Any]]]:
        supply, found = iter(sources), []
        for graphdef in graphdefs:
            pairs = zip(plan_of(graphdef).leaves, itertools.islice(supply, graphdef.num_leaves), strict=True)
            found.append((graphdef, [leaf_at(part.index, source) for part, source in pairs]))
        return found

    arguments, sources = outcome.arguments, outcome.argument_sources
    if arguments is None and outcome.sets_attributes:
        new = {position: address for position, address in outcome.written if position in outcome.attributes}
        arguments = gathered.structure.roots
        sources = tuple(new.get(position, Address(INPUT, position)) for position in range(len(cells)))
    refilled, returned = with_leaves(arguments or (), sources), with_leaves(output.roots, outcome.output_sources)
    both = [*refilled, *returned]
    check_refill([graphdef for graphdef, _ in both], itertools.chain.from_iterable(each for _, each in both), cache)

    def write() -> Any:
        for position, address in outcome.written:
            if position not in outcome.attributes:
                cells[position].raw = at(outputs, address)
        builder = Builder({} if arguments is not None else {**cache}, cache)
        for part in refilled:
            builder.build(*part)
        return [builder.build(*part) for part in returned]

    objects = iter(completed(write))
    return output.unflatten(lambda *_: next(objects), (), [at(outputs, address) for address in outcome.plain])
