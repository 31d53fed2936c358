"""A warning about loops over equal blocks that are traced block by block; a ``Stack`` is traced once. (rule ST14)

While a program is traced, ``module_names.py`` records which modules are called, and their inputs. When the traced
function returns, the lists in its arguments are checked: one warning for each list that can become a stack. The blocks
must be called in sequence, that is, with different inputs, which have the same shape. A compiled step has no overhead.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._compat import Tracer
from ..core.objects.containers import List
from ..core.objects.module import Module
from ..core.objects.pytree import Pytree
from ..core.objects.visit import Place, iter_variables
from ..errors import UnrolledLoopWarning
from ..ground.notices import warn
from ..ground.paths import Path, format_path
from ..ground.restoring import Restoring
from ..stacks.stacking import described, smallest_period
from .first_calls import at_end_of_first_call
from .labelled_calls import wants_labels

FEWEST = 8  # the number of equal blocks that is worth a warning
SETTING = "PLAIT_ADVISE_STACKS"

# The warnings already given. ``advise_stacks`` adds to it; nothing is removed, and it holds only text and numbers.
_said: set[Any] = set()


class _Looking(threading.local):
    only: bool = False  # whether the program is only inspected, not run


_looking = _Looking()


def only_looked_at() -> Restoring:
    """Programs that are traced inside the block are only inspected, not run: there are no warnings about them."""
    return Restoring(_looking, only=True)


class Holder(NamedTuple):
    """An argument of a traced function that contains modules.

    Attributes:
        name: its name; ``None`` if no other argument contains modules.
        places: the paths of its modules.
    """

    name: str | None
    places: Sequence[Place]

    def path(self, place: Place) -> Path:
        """The path, starting with the name of the argument."""
        return place.path if self.name is None else (self.name, *place.path)


def advise_stacks(holders: Sequence[Holder], inputs: Mapping[int, Any], base: Path) -> None:
    """Warn once about each list of equal blocks that was called block by block, and say what a stack would save.

    Args:
        inputs: the first input of each module that was called, by the id of the module.
        base: the path of the arguments in the whole program; empty if they are its own arguments.

    Warns:
        UnrolledLoopWarning: the warning names the path of the list.
    """
    if len(inputs) < FEWEST or _looking.only or wants_labels() or os.environ.get(SETTING, "1") in ("", "0"):
        return
    for path, blocks, cure in _lists(holders, is_inside=bool(base)):
        if len(blocks) >= FEWEST and all(id(block) in inputs for block in blocks):
            key = (*base, *path), len(blocks), type(blocks[0]).__module__, type(blocks[0]).__qualname__
            period = None if key in _said else _period(blocks, [inputs[id(block)] for block in blocks])
            if period is not None:
                _said.add(key)
                advise = functools.partial(_advise, (*base, *path), _described_blocks(blocks, period), cure)
                if not at_end_of_first_call(advise):
                    advise(None)


def _lists(holders: Sequence[Holder], *, is_inside: bool) -> Iterator[tuple[Path, list[Any], str]]:
    """The lists of modules in the arguments, or that are arguments: path, items, and what to write instead."""
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
        yield (name,), blocks, f"{name} = plait.Stack({name}), and instead of the loop: x = {name}(x)"


_ITEM = re.compile(r"(\w+)\[(\d+)\]")


def _period(blocks: Sequence[Any], inputs: Sequence[Any]) -> int | None:
    """The period of the stack that can replace a loop; ``None`` if none can."""
    try:
        flat = [jax.tree.leaves(x, is_leaf=lambda leaf: isinstance(leaf, Pytree)) for x in inputs]
    except ValueError:  # dicts whose keys have no order are not pytrees
        return None
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
    """The code to write instead of the loop."""
    model = holder.name if holder.name is not None and holder.name.isidentifier() else "model"
    if not place.path:
        return f"{model} = plait.Stack({model}), and instead of the loop: x = {model}(x)"
    above = place.owner.value if place.owner is not None else None
    if isinstance(above, Module) and type(above).__module__.partition(".")[0] == __name__.partition(".")[0]:
        kind = type(above).__name__
        return f"plait.Stack(list({model}.{format_path(place.path)})) instead of the {kind}, whose loop this is"
    pattern = ("**." if is_inside else "") + format_path(place.path)
    call = f"x = self.{format_path(place.path[-1:])}(x)"
    return f"plait.as_stack({model}, {pattern!r}), and instead of the loop: {call}"


def _described_blocks(blocks: Sequence[Any], period: int) -> tuple[int, int, str, str]:
    """What a warning says of blocks, without holding them: their number, how many a stack traces, how they repeat, and
    their classes."""
    kinds = " and ".join(dict.fromkeys(type(block).__name__ for block in blocks[:period]))
    repeat = "equal blocks" if period == 1 else f"blocks that repeat with period {period}"
    return len(blocks), period + len(blocks) % period, repeat, kinds


def _advise(at: Path, blocks: tuple[int, int, str, str], cure: str, seconds: float | None) -> None:
    """Warn about a loop.

    Args:
        seconds: how long its program took to trace and compile, if that is known.
    """
    count, traced, repeat, kinds = blocks
    saved = ""
    if seconds is not None and seconds >= 1:
        saved = f" (here up to {seconds * (count - traced) / count:.0f} of {seconds:.0f} s)"
    warn(
        UnrolledLoopWarning,
        f"a loop over {count} {repeat} was traced block by block",
        at=f"{format_path(at) or 'the list'} ({count} of {kinds})",
        found=f"the program contains {count} blocks: its size, and the time to trace and compile it, grow with them",
        expected=f"a plait.Stack, of which it contains {traced}: about {traced}/{count} of that{saved}, and the same "
        "values",
        do=f"{cure}; to keep the loop: warnings.filterwarnings('ignore', "
        f"category=plait.errors.UnrolledLoopWarning), or {SETTING}=0 in the environment",
    )
