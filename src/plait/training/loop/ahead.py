"""Batches that are read before their step begins, each with the position of the data after it.

With none ahead, a batch is fetched when its step is about to begin. The position before each fetch is kept, so that a
signal need not wait for slow data: what was being fetched is fetched again.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import jax

from ...checkpoint.positions import copied, has_position, positions_of
from ...core.functional.split import state
from ...errors import CheckpointWarning
from ...util.jax_versions import ArrayImpl
from ...util.notices import warn
from ...util.sentinels import NOTHING
from ...util.words import text_of
from .children import Children
from .placing import owned


class Interrupted(BaseException):
    """A signal has arrived while a batch was being read."""


class Ahead:
    """An iterator whose batches are fetched some steps early.

    Args:
        data: the iterator.
        ahead: how many batches after the next one are fetched early.
        done: the number of steps done.
        children: whose signals are heard while a batch is fetched.

    Attributes:
        last: the last step whose batch has been read.
        ended: what the data has raised: ``StopIteration`` at its end; ``None`` if it goes on.
        may_interrupt: whether a batch is being read that the run can do without; the first signal then
            raises ``Interrupted``. Without a position, what was being fetched would be lost.
        is_interrupted: whether a second signal has raised ``KeyboardInterrupt``, which ends the run at once. One that
            the data itself has raised is an error of the data.
    """

    def __init__(self, data: Iterator[Any], ahead: int, done: int, children: Children | None = None) -> None:
        self._data: Any = data
        self._children = children or Children()
        self._ahead = ahead
        self._first = done + 1  # which no process begins before all have its batch
        self._knows = has_position(data)
        self._where = positions_of(data)
        self._held: collections.deque[tuple[Any, Any]] = collections.deque()
        # The positions after the last batch that was used, and after the last one that was fetched.
        self._position = self._newest = self._where() if self._knows else None
        self._was_interrupted = self._was_told = False
        self.last = done
        self.ended: BaseException | None = None
        self.may_interrupt = self.is_interrupted = False

    def fetch(self, is_needed: bool = False) -> Any:
        """The next batch of the data; ``NOTHING`` if a signal has arrived, or if the data has ended.

        Args:
            is_needed: whether the run cannot do without it.
        """
        self._was_told = False
        try:
            if self._was_interrupted:
                self._data.set_state(copied(self._newest))  # what it may count with
            self.may_interrupt = self._was_interrupted = self._knows and not is_needed
            self._children.hear()
            batch = next(self._data)
            if self._was_told:  # and the data has caught it, with what it was reading
                raise Interrupted
            self.may_interrupt = False
            if self._ahead:
                batch = _to_hold(batch)
            if self._knows:
                self._newest = self._where()
        except Interrupted:
            self.may_interrupt = False
            return NOTHING
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.is_interrupted:
                raise
            self.may_interrupt = False
            if self._was_told:  # so it may be why the data has raised something else, or has ended
                return NOTHING
            self._was_interrupted = self._knows and getattr(self._data, "is_awaited", False)  # it took too long
            self.ended = error
            return NOTHING
        finally:
            self._children.go_on()
        self._was_interrupted = False
        self.last += 1
        return batch

    def interrupt(self) -> None:
        """Let the data be asked no longer, if the run can do without; the handler of a signal calls this."""
        if self.may_interrupt:
            self._was_told = True
            raise Interrupted

    def fill(self, step: int, steps: int) -> None:
        """Fetch the batch of this step, and those after it, unless a signal arrives, and hold them."""
        while self.ended is None and self.last < steps and self.last < step + self._ahead:
            if not self._held:
                self._position = self._newest
            # Other processes, which go on, need it.
            batch = self.fetch(self._ahead > 0 and self._first <= self.last < step)
            if batch is NOTHING:
                return
            self._held.append((batch, self._newest))

    def take(self) -> Any:
        """The next of the batches that are held."""
        batch, self._position = self._held.popleft()
        return batch

    def look_again(self) -> None:
        """An evaluation may have moved the data: if no batch is held, that is the position to save."""
        if self._knows and not self._was_interrupted and not self._held:
            self._newest = self._where()

    def go_back(self) -> None:
        """Give the batches that were not used back to the data, if it has a position and can go there."""
        if not (self._knows and (self._held or self._was_interrupted)):
            return
        try:
            self.set_state(self.get_state())
        except Exception as error:  # the run has ended, and its checkpoint has the position
            warn(
                CheckpointWarning,
                "the data could not go back to the batches that the run has not used",
                at="data",
                found=f"{type(error).__name__}: {text_of(error)}",
                expected="data whose set_state works at any time",
                do="pass new data to the next fit, if this program goes on",
            )

    def get_state(self) -> Any:
        """The position after the last batch that was used."""
        return self._position if self._held else self._newest

    def set_state(self, position: Any) -> None:
        """Move the data to a position."""
        self._held.clear()
        self._data.set_state(copied(position))
        self._newest, self._was_interrupted = position, False


def _to_hold(batch: Any) -> Any:
    """The same batch, with its own NumPy arrays in mappings and trees of JAX: the data may fill them with the next."""
    if isinstance(batch, MutableMapping):  # of those that JAX knows, it would sort the keys, which may be of two types
        held = copy.copy(batch)
        for key in batch:
            held[key] = _to_hold(batch[key])
        return held
    parts, kind = jax.tree.flatten(batch, is_leaf=lambda part: part is not batch)
    return owned(batch) if jax.tree_util.treedef_is_leaf(kind) else jax.tree.unflatten(kind, map(_to_hold, parts))


class Pace:
    """Waits before a step until an earlier one is complete on all processes.

    Args:
        ahead: how many steps after a complete one may begin.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._results: collections.deque[Any] = collections.deque(maxlen=ahead)
        self._known: Any = None  # the sharding of the last result that is one array
        self._is_shared = False  # whether that has parts on other processes

    def keep(self, returned: Any) -> None:
        """The result of a step that has begun."""
        self._results.append(returned)

    def wait(self, objects: Mapping[str, Any]) -> bool:
        """Wait until the step ``ahead`` before the next one is complete, or all if its result has no shared array.

        Returns:
            Whether the processes share any array. If they do not, they do not wait for each other in a step.
        """
        oldest: Any = self._results[0] if self._results else None
        if type(oldest) is ArrayImpl:  # as usual; what is done at each step is done with cold caches
            if oldest.sharding is not self._known:
                self._known, self._is_shared = oldest.sharding, not oldest.is_fully_addressable
            if self._is_shared and not oldest.is_deleted():
                if len(self._results) == self._ahead:
                    oldest.block_until_ready()
                return True
        arrays = _shared(oldest) or _shared(state(list(objects.values()), graph=True))
        if len(self._results) == self._ahead:
            for array in arrays:
                array.block_until_ready()
        return bool(arrays)


def _shared(tree: Any) -> list[jax.Array]:
    """The arrays with parts on other processes, without those that were donated."""
    arrays = [each for each in jax.tree.leaves(tree) if isinstance(each, jax.Array)]
    return [each for each in arrays if not (each.is_fully_addressable or each.is_deleted())]
