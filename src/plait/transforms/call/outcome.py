"""What one call did to its arguments and what it returned, as far as it is static.

Values that come out travel in ports: lists that the JAX transform in the middle treats each in one way. An ``Address``
says where a value is: in which port and at which place of it, or among the values that came in.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from jax.tree_util import register_static

from ...core.graph.graphdef import GraphDef, NodeRef, iter_parts
from ...core.objects.statics import HashableMapping
from .gather import Structure


class Address(NamedTuple):
    """Where a value is: the number of its port, or ``INPUT`` for one that came in, and its place there."""

    port: int
    place: int


INPUT = -1


@register_static
@dataclasses.dataclass(frozen=True)
class Outcome:
    """The static half of what a function left.

    Attributes:
        written: the position of each variable and array attribute that was written, among the values that came in, and
            where its new value is.
        unwritten: the same for those that were only read, where all values come out.
        arguments: the graphdefs of the arguments afterwards, or ``None`` when their structure is as it was.
        argument_sources: where the value of each leaf of those is.
        output: the structure of the output, or ``None`` for a plain one that is carried as it is.
        output_sources: where the value of each leaf of its objects is.
        plain: where each plain leaf of the output is.
        moved: outer index → new index, for the objects that were there before.
        attributes: the positions of array attributes; one that is written is set on its owner.
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
        """Whether only values of existing variables were written and the output holds no objects."""
        return self.arguments is None and not self.returns_objects and not self.sets_attributes

    def returned_arguments(self, arguments: Structure) -> dict[int, int] | None:
        """Which arguments are returned as such: index in the output → number of the object among the arguments.

        ``None`` where the output cannot be made of these and new objects alone, and where the structure changed.
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

    def like(self) -> Outcome:
        """The outcome without what two functions may do differently: which of the returned values they wrote."""
        return dataclasses.replace(self, written=(), unwritten=tuple(sorted((*self.written, *self.unwritten))))

    def with_written(self, positions: frozenset[int] | set[int]) -> Outcome:
        """The outcome with these of the returned values taken for written, and the others left out."""
        both = sorted((*self.written, *self.unwritten))
        written = tuple(entry for entry in both if entry[0] in positions)
        return dataclasses.replace(self, written=written, unwritten=())

    def sources_of_arguments(self) -> tuple[Address, ...]:
        """Where the value of each leaf of the arguments is, once the function has run and all values came out."""
        if self.arguments is not None:
            return self.argument_sources
        return tuple(address for _, address in sorted((*self.written, *self.unwritten)))


def at(outputs: Any, address: Address) -> Any:
    """The value at an address of the ports that came out."""
    return outputs[address.port][address.place]
