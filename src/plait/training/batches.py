"""A source that can be gone through again and again, as one iterator that knows its position."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ..errors import ArgumentError, ArgumentTypeError

T = TypeVar("T")


class Batches(Generic[T]):
    """Goes through a source, epoch after epoch, and can be saved in a checkpoint and go on from there.

    The position is the number of the epoch and of the batch in it. To go on, the source is gone through up to there
    again, without using what it gives; an iterator that has ``get_state`` and ``set_state`` of its own, such as
    Grain's, finds its place faster and is saved as it is.

    Args:
        source: what gives the batches of one epoch each time that it is iterated over, in the same order; or a function
            of the number of the epoch (from 0), for another order in each: ``lambda epoch: shuffled(data, epoch)``.
        epochs: after how many it ends; ``None`` for never.

    Attributes:
        epoch: the number of the epoch that the next batch belongs to.
        index: how many batches of it were given.

    Raises:
        ArgumentTypeError: the source can be gone through only once.
        ArgumentError: an epoch has no batches, or fewer than were given before. Both are raised when it is met.

    Example:
        >>> batches = plait.training.Batches([10, 20, 30], epochs=2)
        >>> next(batches), next(batches), batches.get_state()
        (10, 20, {'epoch': 0, 'index': 2})
        >>> again = plait.training.Batches([10, 20, 30], epochs=2)
        >>> again.set_state({"epoch": 0, "index": 2})
        >>> list(again)
        [30, 10, 20, 30]
    """

    def __init__(self, source: Iterable[T] | Callable[[int], Iterable[T]], *, epochs: int | None = None) -> None:
        once = isinstance(source, Iterator)
        if once or not (callable(source) or isinstance(source, Iterable) or hasattr(source, "__getitem__")):
            raise ArgumentTypeError(
                "the source of batches has to be gone through again for each epoch",
                found=f"{type(source).__name__}, which gives its items once" if once else f"{type(source).__name__}",
                expected="a list or dataset, or a function of the number of the epoch",
                do="pass what makes the iterator: Batches(lambda epoch: make_iterator(epoch))",
            )
        self._source = source
        self.epochs = epochs
        self.epoch = self.index = 0
        self._rest: Iterator[T] | None = None

    def __iter__(self) -> Batches[T]:
        return self

    def __next__(self) -> T:
        while True:
            if self.epochs is not None and self.epoch >= self.epochs:
                raise StopIteration
            if self._rest is None:
                self._rest = self._begin()
            try:
                batch = next(self._rest)
            except StopIteration:
                self._end_epoch()
                continue
            self.index += 1
            return batch

    def _begin(self) -> Iterator[T]:
        """The batches of this epoch that were not given yet."""
        source: Any = self._source
        epoch: Any = source(self.epoch) if callable(source) and not isinstance(source, Iterable) else source
        rest = iter(epoch)
        passed = sum(1 for _ in itertools.islice(rest, self.index))
        if passed < self.index:
            raise ArgumentError(
                "the source has fewer batches than it had when its position was saved",
                at=f"epoch {self.epoch}",
                found=f"{passed} batches",
                expected=f"at least {self.index}, which were given before",
                do="go on with the same data and the same size of batches",
            )
        return rest

    def _end_epoch(self) -> None:
        if self.index == 0:
            raise ArgumentError(
                "an epoch has no batches",
                at=f"epoch {self.epoch}",
                found="a source that ends at once",
                expected="at least one batch in each epoch",
                do="check the data, or pass a function that makes a fresh iterator: Batches(lambda epoch: ...)",
            )
        self.epoch, self.index, self._rest = self.epoch + 1, 0, None

    def get_state(self) -> dict[str, int]:
        """The position: the epoch, and how many of its batches were given."""
        return {"epoch": self.epoch, "index": self.index}

    def set_state(self, state: dict[str, int], /) -> None:
        """Go to a position that ``get_state`` gave."""
        self.epoch, self.index, self._rest = state["epoch"], state["index"], None
