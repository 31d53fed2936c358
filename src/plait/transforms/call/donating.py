"""Donation by ports: selecting the buffers that a call donates.

JAX donates whole arguments, so donated values are passed separately from the others. A variable whose buffer is donated
is always returned, written or not; otherwise it would be left without a buffer.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from .body import Body
from .call import Call
from .guards import check_writable
from .prefixes import is_graph_leaf


@dataclasses.dataclass(frozen=True)
class Donating:
    """A body with two arguments: the donated values of each port, and the others. Equal for equal structures.

    Attributes:
        flags: for each value of each port, whether it is donated.
    """

    body: Body
    flags: tuple[tuple[bool, ...], ...]

    def __call__(self, given: Sequence[Sequence[Any]], kept: Sequence[Sequence[Any]]) -> Any:
        inputs = []
        for first, second, flags in zip(map(iter, given), map(iter, kept), self.flags, strict=True):
            inputs.append([next(first) if is_given else next(second) for is_given in flags])
        return self.body(inputs)

    def separated(self, inputs: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
        """The donated values of the ports, and the others."""
        pairs = [list(zip(port, flags, strict=True)) for port, flags in zip(inputs, self.flags, strict=True)]
        return (
            tuple([value for value, is_given in port if is_given] for port in pairs),
            tuple([value for value, is_given in port if not is_given] for port in pairs),
        )


def donate(call: Call, args: tuple[Any, ...], donated: frozenset[int]) -> Donating:
    """The body of a call that donates the arrays and variables of the arguments at ``donated``.

    Array attributes are not donated, nor is a buffer that two inputs share, since it can be donated only once.

    Raises:
        TraceContextError: a variable whose buffer would be donated belongs to a different trace; nothing is lost.
    """
    gathered, walk = call.gathered, call.gathered.walk
    roots: list[bool] = []
    plain: list[bool] = []
    for number, arg in enumerate(args):
        for leaf in jax.tree_util.tree_leaves(arg, is_leaf=is_graph_leaf):
            (roots if is_graph_leaf(leaf) else plain).append(number in donated)
    values = gathered.values()
    holders = collections.Counter(map(id, [*values, *gathered.plain])) if donated else {}
    positions: set[int] = set()
    if walk is not None and donated:
        given = [is_given for is_given, count in zip(roots, walk.counts, strict=True) for _ in range(count)]
        positions = {
            position
            for position, is_given in enumerate(given)
            if is_given and walk.types[position] is not None and holders[id(values[position])] == 1
        }
        check_writable(positions, gathered)
    flags: list[list[bool]] = [[] for _ in call.ports]
    for position, port in enumerate(call.body.value_ports):
        flags[port].append(position in positions)
    for is_given, port, leaf in zip(plain, call.body.plain_ports, gathered.plain, strict=True):
        flags[port].append(is_given and holders[id(leaf)] == 1)
    body = dataclasses.replace(call.body, donated=frozenset(positions))
    return Donating(body, tuple(map(tuple, flags)))
