"""The outcome of a call: the static description of its changes to the arguments and of its output.

Output values are returned in ports: lists of values that the JAX transform in the middle treats alike. An ``Address``
locates a value: the port and the place in it, or the position among the input values.

``jax.lax.while_loop`` and ``cond`` return no static values, so a kept function remembers what each of its traces did,
by the types of its inputs: a later call with inputs of known types is not traced. (``Traces``)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
from jax.tree_util import register_static

from ...core.graph.graphdef import GraphDef, NodeRef, iter_parts
from ...core.objects.statics import HashableMapping
from .gather import Structure

T = TypeVar("T")


class Address(NamedTuple):
    """The location of a value: the number of its port, or ``INPUT`` for an input value, and its place there."""

    port: int
    place: int

    def of(self, outputs: Any) -> Any:
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

    def like(self) -> Outcome:
        """The outcome without the part in which two branches may differ: which of the returned values they wrote."""
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
        self._by_types: dict[Any, T] = {}

    def add(self, values: Iterable[Any], outcome: T) -> None:
        """Record a trace with these input values."""
        self._by_types[self.types(values)] = outcome

    def of(self, values: Iterable[Any]) -> T | None:
        """The outcome of the trace for values of these types."""
        return self._by_types.get(self.types(values))

    @staticmethod
    def types(values: Iterable[Any]) -> tuple[Any, ...]:
        """Shape and dtype of each leaf of each value."""
        return tuple(
            tuple((jax.typeof(leaf).shape, jax.typeof(leaf).dtype) for leaf in jax.tree_util.tree_leaves(value))
            for value in values
        )
