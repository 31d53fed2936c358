"""What the body of a loop may do: a value that a loop passes to its call.

The body is traced once, so what iterations carry or share must have the same references before and after. A slot of
the carry either keeps its variable or takes a value: a new variable of the same kind may replace the variable that came
in through a slot, as long as nothing else refers to either. What all iterations share is read-only: each iteration
starts from the initial value, and its writes are lost. (rules X20, X21, U28)
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ...core.graph.diff import reference_changes
from ...core.graph.graphdef import NodeRef, iter_parts
from ...core.objects.cells import metadata_key
from ...core.objects.variables import Variable
from ...errors import ArgumentError, ArgumentTypeError, LostUpdateWarning
from ...notices import warn
from ...words import describe_type, first_few, name_of_class
from .leave import Left
from .names import joined
from .prefixes import is_graph_leaf


@dataclasses.dataclass(frozen=True)
class Loop:
    """The rules of one loop.

    Attributes:
        name: the transform.
        carry_in, carry_out: position of the carry among the arguments (``None``: there is no carry that is returned),
            and in the output (``None``: all of it).
        parts: the argument, a dict, that holds parts of the module which runs the loop, under their own keys.
    """

    name: str
    carry_in: int | None = None
    carry_out: int | None = None
    parts: str | None = None

    def names(self, labels: Sequence[str]) -> list[str]:
        """What objects of these labels are called in programs: parts of the module by their keys."""
        if self.parts is None:
            return list(labels)
        found = [re.fullmatch(rf"{self.parts}\[(.+)\]", label) for label in labels]
        return [label if part is None else part[1] for label, part in zip(labels, found, strict=True)]

    def replaced(self, left: Left, out: Any) -> dict[int, Any]:
        """New variables that stand for variables of the carry: input position → variable.

        Raises:
            ArgumentError: the carry that was returned has another structure, or other references.
        """
        if self.carry_in is None:
            return {}
        before, after = left.entered.tree[0][self.carry_in], self._returned(out)
        old, old_tree = jax.tree_util.tree_flatten_with_path(before, is_leaf=is_graph_leaf)
        new, new_tree = jax.tree_util.tree_flatten_with_path(after, is_leaf=is_graph_leaf)
        if old_tree != new_tree:
            raise ArgumentError(
                f"{self.name}: the carry that the function returned does not fit the one it was given",
                found=f"{new_tree}",
                expected=f"{old_tree}",
                do="return the carry with the structure that came in",
            )
        slots = collections.Counter(id(item) for _, item in new)
        met = collections.Counter(
            part.index
            for root in left.entered.structure.roots
            for part in iter_parts(root)
            if isinstance(part, NodeRef)
        )
        shared = {id(left.entered.index_ref[index]) for index in met if index is not None}
        found: dict[int, Any] = {}
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
                    found=f"another {type(second).__name__} than the {type(first).__name__} that came in",
                    expected="the same object",
                    do="change the object in place (variable[...] = value, plait.update(module, state)), and return it",
                )
            found[position] = second
        return found

    def _may_replace(self, left: Left, position: int, first: Any, second: Any) -> bool:
        """States are data, as arrays are: a new variable of the same kind may come for one that was not written."""
        return (
            isinstance(first, Variable)
            and type(first) is type(second)
            and metadata_key(first._cell) == metadata_key(second._cell)
            and first._cell.raw is left.entered.values[position]
            and not left.came_in(second)
        )

    def _returned(self, out: Any) -> Any:
        if self.carry_out is None:
            return out
        if not isinstance(out, (tuple, list)) or len(out) <= self.carry_out:
            raise ArgumentTypeError(
                f"{self.name}: the function did not return as many outputs as out_axes says",
                found=describe_type(out),
                expected="a tuple of the carry and the outputs",
                do="return (carry, out) or (carry, None), or pass out_axes=plait.Carry",
            )
        return out[self.carry_out]

    def check(self, left: Left, prefixes: tuple[Any, ...], labels: Callable[[], Any], structural: bool) -> None:
        """Refuse changes of what iterations hand on or share.

        Raises:
            ArgumentError: names the path, and what changed.
        """
        if left.arguments is None:
            return
        if not structural:
            raise ArgumentError(
                f"{self.name} with graph_updates=False was asked to change the structure of what it was given",
                found="new, removed or replaced attributes",
                expected="new values only",
                do="use graph_updates=True",
            )
        before = left.entered.structure.roots
        for root, path, text, is_new_variable in reference_changes(before, left.arguments, left.moved()):
            if not isinstance(prefixes[root], int) and not is_new_variable:
                raise ArgumentError(
                    f"{self.name}: the structure of what iterations hand on or share changed in an iteration",
                    at=joined(labels()[0][root], path),
                    found=text,
                    expected="the same attributes and references before and after",
                    do="make the change before or after the loop; the body of a loop is traced only once",
                )

    def drops(self, port: Any) -> bool:
        """Whether writes to values of a port are lost."""
        return port is None

    def warn_of_dropped(self, labels: list[str], kinds: list[type]) -> None:
        """Warn of writes to variables, or array attributes, that all iterations share.

        Warns:
            LostUpdateWarning: names the paths.
        """
        warn(
            LostUpdateWarning,
            f"{self.name}: what an iteration writes to what all iterations share is dropped",
            at=first_few(labels, 5),
            found="a new value where the axis is None",
            expected="that it is only read; every iteration starts from its first value",
            do="carry it, with these axes for the argument: plait.StateAxes({"
            + ", ".join(f"{name_of_class(kind)}: plait.Carry" for kind in dict.fromkeys(kinds))
            + ", ...: None}); or give it an axis",
        )

    def new_in_carry(self, leaf: Any, place: str) -> ArgumentError:
        """The error for a variable that an iteration adds to what it hands on."""
        return ArgumentError(
            f"{self.name}: the structure of the carry changed in one iteration",
            at=place,
            found=f"a new {type(leaf).__name__}",
            expected="the same variables before and after",
            do="make the variable before the loop, or give it an axis: "
            f"plait.StateAxes({{{name_of_class(type(leaf))}: 0, ...: plait.Carry}})",
        )
