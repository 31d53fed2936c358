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
        return completed(_Rebuilding(outcome, gathered, outputs).output)
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


class _Rebuilding:
    """The write back of an outcome with more than values.

    Raises:
        TraceContextError: an object that would be changed belongs to a different trace; nothing is written.
    """

    def __init__(self, outcome: Outcome, gathered: Gathered, outputs: Any) -> None:
        self.outcome, self.outputs = outcome, outputs
        self.cells = [] if gathered.walk is None else gathered.walk.cells
        self.inputs = [cell.raw for cell in self.cells]
        outer = Walk()
        for root in gathered.roots:
            outer.add(root)
        moved = outcome.moved
        self.cache = own_objects(outer.refs, {i: i for i in outer.refs.values()} if moved is None else moved)
        self.own = {id(leaf): position for position, leaf in enumerate(outer.leaves) if isinstance(leaf, Variable)}
        arguments, sources = outcome.arguments, outcome.argument_sources
        if arguments is None and outcome.sets_attributes:
            new = {position: address for position, address in outcome.written if position in outcome.attributes}
            arguments = gathered.structure.roots
            sources = tuple(new.get(position, Address(INPUT, position)) for position in range(len(self.cells)))
        output = outcome.output
        self.arguments = self._parts(arguments or (), sources)
        self.objects = self._parts(output.roots, outcome.output_sources) if output is not None else []
        parts = [*self.arguments, *self.objects]
        leaves = itertools.chain.from_iterable(leaves for _, leaves in parts)
        check_refill([graphdef for graphdef, _ in parts], leaves, self.cache)
        self.known = {} if arguments is not None else self.cache

    def output(self) -> Any:
        """Write, and build the output. Done twice, it leaves the same."""
        structure = self.outcome.output
        assert structure is not None
        for position, address in self.outcome.written:
            if position not in self.outcome.attributes:
                self.cells[position].raw = at(self.outputs, address)
        builder = Builder({**self.known}, self.cache)
        for graphdef, leaves in self.arguments:
            builder.build(graphdef, leaves)
        objects = iter([builder.build(graphdef, leaves) for graphdef, leaves in self.objects])
        plain = (at(self.outputs, address) for address in self.outcome.plain)
        return structure.unflatten(lambda *_: next(objects), (), plain)

    def _parts(self, graphdefs: Sequence[GraphDef], sources: Sequence[Address]) -> list[tuple[GraphDef, list[Any]]]:
        """Each graphdef with its leaves."""
        supply = iter(sources)
        return [(each, self._leaves(each, [*itertools.islice(supply, each.num_leaves)])) for each in graphdefs]

    def _leaves(self, graphdef: GraphDef, sources: Sequence[Address]) -> list[Any]:
        """The leaves for a graphdef; a variable that still holds its own input value is left untouched."""
        leaves = []
        for part, source in zip(plan_of(graphdef).leaves, sources, strict=True):
            if source.port != INPUT:
                leaves.append(at(self.outputs, source))
                continue
            cached = self.cache.get(part.index) if part.index is not None else None
            is_own = cached is not None and self.own.get(id(cached)) == source.place
            leaves.append(UNTOUCHED if is_own else self.inputs[source.place])
        return leaves
