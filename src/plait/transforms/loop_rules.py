"""What is particular to the body of a loop: rules that a loop passes to its call, and how its results are sorted.

The body is traced once, so carried and shared objects must have the same references before and after. A slot of the
carry either keeps its variable or gets a new value: a new variable of the same kind may replace the input variable of
the slot, or of an attribute, as long as nothing else refers to either. Objects that all iterations share are read-only:
each iteration starts from the initial value, and its writes are lost. (rules X20, X21, U28)
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax

from ..core.graph.diff import reference_changes
from ..core.graph.graphdef import NodeRef, iter_parts
from ..core.graph.walks import is_graph_leaf, path_of
from ..core.nodes.nodes import Kind, visit
from ..core.nodes.pytree import Pytree
from ..core.variables.cells import metadata_key
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError, LostUpdateWarning
from ..typing import Node, Tree, Value
from ..util.notices import warn
from ..util.words import describe_type, first_few, name_of_class
from .axis_names import AxisNames
from .call.arguments import joined
from .call.body import Body, OutputPorts
from .call.enter_leave import TracedArguments, TracedResult
from .call.outcome import Address, Outcome
from .call.prefixes import Carry


@dataclasses.dataclass(frozen=True)
class LoopRules(AxisNames):
    """The rules of one loop.

    Attributes:
        carry_in, carry_out: position of the carry among the arguments (``None`` if no carry is returned), and in the
            output (``None`` if it is the whole output).
        parts: the argument, a dict, that holds the parts of the module whose loop it is, under their own keys.
        keeps_writes: whether writes to objects that all iterations share are kept where only values are carried out:
            an iteration then starts from the values of the one before.
    """

    loops = True
    carry_in: int | None = None
    carry_out: int | None = None
    parts: str | None = None
    keeps_writes: bool = False

    def kinds(self, prefixes: list[Hashable], *, structural: bool) -> list[Hashable]:
        keeps = self.keeps_writes and not structural
        return [Carry if keeps and prefix is None else prefix for prefix in prefixes]

    def run(self, body: Body, entered: TracedArguments, call: Callable[[], Tree]) -> Tree:
        def kept() -> Tree:
            out = call()
            self._keep_variables(entered, out, body.prefixes)
            return out

        return super().run(body, entered, kept)

    def _keep_variables(self, entered: TracedArguments, out: Tree, prefixes: Sequence[Hashable]) -> None:
        """Where an iteration replaced a variable of a carried module by a new one, the old one gets its value.

        Only if they are alike but for the value, the old one has no place any more, and the new one has no other.
        """
        now = [place for place in visit((entered.roots, out)) if place.kind is Kind.VARIABLE]
        known, held = {id(each) for each in entered.variables()}, collections.Counter(id(place.value) for place in now)
        new = {place.path: place for place in now if id(place.value) not in known and place.path[0] == 0}
        if not new:
            return
        for (root, path), old in zip(entered.structure.leaf_paths(), entered.variables(), strict=True):
            place = new.get((0, root, *path))
            if place is None or held[id(place.value)] > 1 or old is None or id(old) in held:
                continue
            owner = None if place.owner is None else place.owner.value
            if prefixes[root] is Carry and isinstance(owner, Pytree) and _alike(old, place.value):
                old._cell.raw = place.value._cell.raw
                put: Callable[[Node, Any, Value], None] = setattr if isinstance(place.key, str) else operator.setitem
                put(owner, place.key, old)

    def names(self, labels: Sequence[str]) -> list[str]:
        """As they are; parts of the module by their keys."""
        if self.parts is None:
            return list(labels)
        found = [re.fullmatch(rf"{self.parts}\[(.+)\]", label) for label in labels]
        return [label if part is None else part[1] for label, part in zip(labels, found, strict=True)]

    def sorted(self, body: Body, left: TracedResult, out: Tree, inputs: Sequence[Sequence[Value]]) -> OutputPorts:
        return LoopOutputs(self, body, left, out, inputs)


class LoopOutputs(OutputPorts):
    """The results of an iteration, sorted into ports. Carried values are always returned, at the same place."""

    def __init__(
        self, rules: LoopRules, body: Body, left: TracedResult, out: Tree, inputs: Sequence[Sequence[Value]]
    ) -> None:
        self.rules, self.name = rules, body.name
        self.dropped: set[int] = set()
        self._check_structure(body, left)
        replaced = self._replaced(left, out)
        super().__init__(body, left, out)
        self.slots = {id(variable): position for position, variable in replaced.items()}
        self.carried: dict[int, Address] = {}
        self.carried_plain: Iterator[Address] = iter(())
        if Carry in body.ports.kinds:
            self._carry(body.ports.kinds.index(Carry), replaced, inputs)

    def _carry(self, port: int, replaced: dict[int, Value], inputs: Sequence[Sequence[Value]]) -> None:
        carried, ports = self.outputs[port], self.body.ports
        for position, own in enumerate(ports.values):
            if own == port:
                self.carried[position] = Address(port, len(carried))
                variable = replaced.get(position)
                carried.append(self.left.after[position] if variable is None else variable._cell.raw)
        count = ports.plain.count(port)
        if count:
            if Carry in self.body.outs.leaves:
                self.carried_plain = iter([Address(port, len(carried) + i) for i in range(count)])
            carried += list(inputs[port])[-count:]

    def done(self) -> tuple[tuple[list[Value], ...], Outcome]:
        found = super().done()
        if self.dropped:
            self._warn_of_dropped()
        return found

    def position(self, leaf: int) -> int | None:
        position = super().position(leaf)
        return self.slots.get(id(self.left.walk.leaves[leaf])) if position is None else position

    def is_itself_outside(self, position: int, prefix: Hashable) -> bool:
        return prefix is not Carry and super().is_itself_outside(position, prefix)

    def is_dropped(self, position: int) -> bool:
        """All iterations share the inputs without an axis."""
        if self.body.ports.of(position) is not None:
            return False
        self.dropped.add(position)
        return True

    def send_back(self, position: int, value: Value) -> Address:
        return self.carried[position] if position in self.carried else super().send_back(position, value)

    def new(self, leaf: int, prefix: Hashable, value: Value) -> Address:
        if prefix is Carry or prefix is None:
            raise self._new_variable_error(leaf, prefix)
        return super().new(leaf, prefix, value)

    def plain(self, leaf: Value, prefix: Hashable) -> Address:
        if prefix is not Carry:
            return super().plain(leaf, prefix)
        address = next(self.carried_plain)  # the trees of the carry have been compared
        self.outputs[address.port][address.place] = leaf
        return address

    def _replaced(self, left: TracedResult, out: Tree) -> dict[int, Value]:
        """New variables that replace variables of the carry: input position → variable.

        Raises:
            ArgumentError: the returned carry has a different structure or different references.
        """
        if self.rules.carry_in is None:
            return {}
        before, after = left.entered.tree[0][self.rules.carry_in], self._returned(out)
        old, old_tree = jax.tree_util.tree_flatten_with_path(before, is_leaf=is_graph_leaf)
        new, new_tree = jax.tree_util.tree_flatten_with_path(after, is_leaf=is_graph_leaf)
        if old_tree != new_tree:
            raise ArgumentError(
                f"{self.name}: the returned carry and the input carry have different structures",
                found=f"{new_tree}",
                expected=f"{old_tree}",
                do="return a carry with the same structure as the input carry",
            )
        slots = collections.Counter(id(item) for _, item in new)
        parts = itertools.chain.from_iterable(map(iter_parts, left.entered.structure.roots))
        indices: list[Any] = [part.index for part in parts if isinstance(part, NodeRef)]
        shared = {id(left.entered.index_ref[index]) for index in indices}
        found: dict[int, Value] = {}
        for (path, first), (_, second) in zip(old, new, strict=True):
            if first is second or not (is_graph_leaf(first) or is_graph_leaf(second)):
                continue
            position = left.position_of(first)
            if (
                position is None
                or not self._may_replace(left, position, first, second)
                or slots[id(second)] > 1
                or id(first) in shared
            ):
                raise ArgumentError(
                    f"{self.name}: the references in the carry changed. "
                    "Carry references must be the same between iterations",
                    at=f"the carry{jax.tree_util.keystr(path)}",
                    found=f"a {type(second).__name__} that is not the input {type(first).__name__}",
                    expected="the same object",
                    do="change the object in place (variable[...] = value, plait.update(module, state)), and return it",
                )
            found[position] = second
        return found

    def _may_replace(self, left: TracedResult, position: int, first: Value, second: Value) -> bool:
        """States are data, like arrays: a new variable of the same kind may replace one that was not written."""
        return (
            isinstance(first, Variable)
            and _alike(first, second)
            and first._cell.raw is left.entered.values[position]
            and not any(second is known for known in left.entered.index_ref.values())
        )

    def _returned(self, out: Tree) -> Tree:
        if self.rules.carry_out is None:
            return out
        if not isinstance(out, (tuple, list)) or len(out) <= self.rules.carry_out:
            raise ArgumentTypeError(
                f"{self.name}: the number of outputs does not match out_axes",
                found=describe_type(out),
                expected="a tuple of the carry and the outputs",
                do="return (carry, out) or (carry, None), or pass out_axes=plait.Carry",
            )
        return out[self.rules.carry_out]

    def _check_structure(self, body: Body, left: TracedResult) -> None:
        """Raise if an iteration changes the structure of carried or shared objects.

        Raises:
            ArgumentError: names the path, and what changed.
        """
        if left.arguments is None:
            return
        if not body.propagation.structural:
            raise ArgumentError(
                f"{self.name} with graph_updates=False cannot change the structure of its arguments",
                found="new, removed or replaced attributes",
                expected="new values only",
                do="use graph_updates=True, if the module has an axis; or make the change before or after the loop",
            )
        before = left.entered.structure.roots
        for root, path, text, is_new_variable in reference_changes(before, left.arguments, left.moved()):
            if not isinstance(body.prefixes[root], int) and not is_new_variable:
                raise ArgumentError(
                    f"{self.name}: an iteration changed the structure of a carried or shared object",
                    at=joined(body.root_labels()[root], path),
                    found=text,
                    expected="the same attributes and references before and after",
                    do="make the change before or after the loop; JAX traces the body of a loop only once",
                )

    def _warn_of_dropped(self) -> None:
        """Warn of writes to variables, or array attributes, that all iterations share.

        Warns:
            LostUpdateWarning: names the paths.
        """
        positions, labels = sorted(self.dropped), self.body.value_labels()
        variables = [self.left.variables[position] for position in positions]
        kinds = dict.fromkeys(jax.Array if variable is None else type(variable) for variable in variables)
        warn(
            LostUpdateWarning,
            f"{self.name}: an iteration writes to a value that all iterations share, and the new value is discarded",
            at=first_few([labels[position] for position in positions], 5),
            found="a new value, with axis None",
            expected="a value that is only read; every iteration starts from the initial one",
            do="carry it, with these axes for the argument: plait.StateAxes({"
            + ", ".join(f"{name_of_class(kind)}: plait.Carry" for kind in kinds)
            + ", ...: None}); or give it an axis",
        )

    def _new_variable_error(self, leaf: int, prefix: Hashable) -> ArgumentTypeError:
        """The error for a variable that an iteration adds to the carry, or to what all iterations share."""
        left, labels = self.left, self.body.root_labels()
        root, new = left.root(leaf), left.walk.leaves[leaf]
        owner = labels[root] if root < len(labels) else "the output"
        kind, other = name_of_class(type(new)), "plait.Carry" if prefix is Carry else "None"
        axes = f"plait.StateAxes({{{kind}: 0, ...: {other}}})"
        return ArgumentTypeError(
            f"{self.name}: an iteration changed the structure of "
            + ("the carry" if prefix is Carry else "an object that all iterations share"),
            at=joined(owner, path_of(left.walk.links[leaf])),
            found=f"a new {type(new).__name__}",
            expected="the same variables before and after",
            do=self.name.new_variables or f"create the variable before the loop, or give it an axis: {axes}",
        )


def _alike(first: Variable[Value], second: Value) -> bool:
    """Whether two variables have the same kind and metadata."""
    return type(first) is type(second) and metadata_key(first._cell) == metadata_key(second._cell)
