"""A message about loops over equal blocks that were traced block by block, which a ``Stack`` traces once. (rule ST14)

While a program is traced, ``module_names.py`` notes which modules were called, and with what. When the traced function
has returned, the lists of its arguments are looked at: one message for each list that a stack can hold. The blocks have
to be called one after the other, so not all with the same input, and with inputs of one shape. A step that runs
compiled pays nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..._compat import Tracer
from ...errors import UnrolledLoopWarning
from ...notices import warn
from ...paths import Path, format_path
from ..objects.containers import List
from ..objects.module import Module
from ..objects.pytree import Pytree
from ..objects.settings import Restoring, setting
from ..objects.visit import Place, iter_variables
from .labelled_calls import wants_labels
from .stacking import described, smallest_period

FEWEST = 8  # equal blocks of which it is worth a word
SETTING = "PLAIT_ADVISE_STACKS"

# The warnings already given. ``advise_stacks`` adds to it; nothing is removed, and it holds only text and numbers.
_said: set[Any] = set()


class _Looking(threading.local):
    only: bool = False  # whether what is traced is only looked at


_looking = _Looking()


def only_looked_at() -> Restoring:
    """Programs that are traced inside the block are looked at, and do not run: nothing is said of them."""
    return Restoring(setting(_looking, only=True))


class Holder(NamedTuple):
    """An argument of a traced function, if it holds modules.

    Attributes:
        name: what it is called; ``None`` if it is the only one with modules.
        places: of the modules in it.
    """

    name: str | None
    places: Sequence[Place]

    def path(self, place: Place) -> Path:
        """The path of a place among the arguments."""
        return place.path if self.name is None else (self.name, *place.path)


def advise_stacks(holders: Sequence[Holder], inputs: Mapping[int, Any], base: Path) -> None:
    """Say of each list of equal blocks that was called block by block what a stack would save, once.

    Args:
        inputs: what each module that was called was given first, by the id of the module.
        base: where the arguments stand in the whole program; empty if they are its own arguments.

    Warns:
        UnrolledLoopWarning: names the path of the list.
    """
    if len(inputs) < FEWEST or _looking.only or wants_labels() or os.environ.get(SETTING, "1") in ("", "0"):
        return
    for path, blocks, cure in _lists(holders, is_inside=bool(base)):
        if len(blocks) >= FEWEST and all(id(block) in inputs for block in blocks):
            key = (*base, *path), len(blocks), type(blocks[0]).__module__, type(blocks[0]).__qualname__
            period = None if key in _said else _period(blocks, [inputs[id(block)] for block in blocks])
            if period is not None:
                _said.add(key)
                _advise((*base, *path), blocks, period, cure)


def _lists(holders: Sequence[Holder], *, is_inside: bool) -> Iterator[tuple[Path, list[Any], str]]:
    """The lists of modules in the arguments, and those that are arguments: path, items, and what to write instead."""
    given: dict[str, list[Any]] = {}
    for holder in holders:
        item = _ITEM.fullmatch(holder.name or "")
        if item and int(item[2]) == len(given.setdefault(item[1], [])):
            given[item[1]].append(holder.places[0].value)
        owners = {id(place.owner): place.owner for place in holder.places if place.owner is not None}
        for owner in owners.values():
            if isinstance(owner.value, (List, list, tuple)):
                yield holder.path(owner), list(owner.value), _cure(holder, owner, is_inside)
    for name, blocks in given.items():
        yield (name,), blocks, f"{name} = plait.Stack({name}), and in the place of the loop: x = {name}(x)"


_ITEM = re.compile(r"(\w+)\[(\d+)\]")


def _period(blocks: Sequence[Any], inputs: Sequence[Any]) -> int | None:
    """The period of the stack that can take the place of a loop; ``None`` if none can."""
    flat = [jax.tree.leaves(x, is_leaf=lambda leaf: isinstance(leaf, Pytree)) for x in inputs]
    shapes = [[(np.shape(leaf), leaf.dtype) for leaf in leaves if isinstance(leaf, Tracer)] for leaves in flat]
    same_input = all(list(map(id, leaves)) == list(map(id, flat[0])) for leaves in flat)
    if not shapes[0] or any(each != shapes[0] for each in shapes) or same_input:
        return None
    owners: dict[int, int] = {}
    for number, block in enumerate(blocks):
        if any(owners.setdefault(id(variable), number) != number for _, variable in iter_variables(block)):
            return None
    structures = list(map(described, blocks))
    period = smallest_period(structures)
    equal = max(sum(each == other for other in structures) for each in structures[:period])
    return period if equal >= FEWEST and 2 * period <= len(blocks) else None


def _cure(holder: Holder, place: Place, is_inside: bool) -> str:
    """The code to write in the place of the loop."""
    model = holder.name if holder.name is not None and holder.name.isidentifier() else "model"
    if not place.path:
        return f"{model} = plait.Stack({model}), and in the place of the loop: x = {model}(x)"
    above = place.owner.value if place.owner is not None else None
    if isinstance(above, Module) and type(above).__module__.partition(".")[0] == __name__.partition(".")[0]:
        kind = type(above).__name__
        return f"plait.Stack(list({model}.{format_path(place.path)})) in the place of the {kind}, whose loop this is"
    pattern = ("**." if is_inside else "") + format_path(place.path)
    call = f"x = self.{format_path(place.path[-1:])}(x)"
    return f"plait.as_stack({model}, {pattern!r}), and in the place of the loop: {call}"


def _advise(at: Path, blocks: Sequence[Any], period: int, cure: str) -> None:
    count, traced = len(blocks), period + len(blocks) % period
    kinds = " and ".join(dict.fromkeys(type(block).__name__ for block in blocks[:period]))
    repeat = "equal blocks" if period == 1 else f"blocks that repeat after {period}"
    warn(
        UnrolledLoopWarning,
        f"a loop over {count} {repeat} was traced block by block",
        at=f"{format_path(at) or 'the list'} ({count} of {kinds})",
        found=f"the program holds {count} blocks, and so grow its text and the time to trace, lower and compile it",
        expected=f"a plait.Stack, of which it holds {traced}: about {traced}/{count} of all that, and the same values",
        do=f"{cure}; to keep the loop: warnings.filterwarnings('ignore', "
        f"category=plait.errors.UnrolledLoopWarning), or {SETTING}=0 in the environment",
    )
