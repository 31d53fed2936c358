"""One iterator over the epochs of a data source, with a position that checkpoints save."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from jax.sharding import Mesh, Sharding

from ...errors import ArgumentError, ArgumentTypeError
from .placing import placing

T = TypeVar("T")


class Batches(Generic[T]):
    """An iterator over a source, epoch after epoch, that can be saved in a checkpoint and resumed.

    The position is the epoch and the number of the batch in it. To resume, it iterates over the source up to there
    and discards the batches; an iterator with its own ``get_state`` and ``set_state``, such as Grain's, resumes faster
    and needs no ``Batches``.

    Args:
        source: an iterable that yields the batches of one epoch each time, in the same order; or a function of the
            epoch (from 0) that returns one, for a different order in each epoch:
            ``lambda epoch: shuffled(data, epoch)``.
        epochs: the number of epochs; ``None`` means no limit.
        sharding: how the arrays of each batch are laid out on devices, as in ``prefetch``: a mesh divides their rows
            along its axes for batches. ``None`` yields what the source yields.
        whole: with ``sharding``, in a run of several processes, whether the source yields the same whole batches on
            each, or each one's own rows.

    Attributes:
        epoch: the epoch of the next batch.
        index: the number of batches of this epoch so far.

    Raises:
        ArgumentTypeError: the source can be iterated over only once.
        ArgumentError: there is an axis in the mesh that the recipe does not know. While iterating: an epoch has no
            batches, or fewer than its saved position, or the devices cannot divide a whole batch evenly.

    Example:
        >>> batches = plait.training.Batches([10, 20, 30], epochs=2)
        >>> next(batches), next(batches), batches.get_state()
        (10, 20, {'epoch': 0, 'index': 2})
        >>> again = plait.training.Batches([10, 20, 30], epochs=2)
        >>> again.set_state({"epoch": 0, "index": 2})
        >>> list(again)
        [30, 10, 20, 30]
    """

    def __init__(
        self,
        source: Iterable[T] | Callable[[int], Iterable[T]],
        *,
        epochs: int | None = None,
        sharding: Sharding | Mesh | None = None,
        whole: bool = False,
    ) -> None:
        once = isinstance(source, Iterator)
        if once or not (callable(source) or isinstance(source, Iterable) or hasattr(source, "__getitem__")):
            raise ArgumentTypeError(
                "the source of batches must be iterable again for each epoch",
                found=f"{type(source).__name__}" + (", which can be iterated over once" if once else ""),
                expected="a list or dataset, or a function of the epoch",
                do="pass a function that makes the iterator: Batches(lambda epoch: make_iterator(epoch))",
            )
        if _is_function(source):
            _check_takes_epoch(source)
        self._source = source
        self.epochs = epochs
        self.epoch = self.index = 0
        self._place = None if sharding is None else placing(sharding, whole=whole)
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
                if self._place is not None:
                    batch = self._place(batch)
            except StopIteration:
                self._end_epoch()
                continue
            except BaseException:
                self._rest = None  # a generator that has raised is at its end; the next call goes to the position again
                raise
            self.index += 1
            return batch

    def _begin(self) -> Iterator[T]:
        """The remaining batches of this epoch."""
        source: Any = self._source
        epoch: Any = source(self.epoch) if _is_function(source) else source
        rest = iter(epoch)
        passed = sum(1 for _ in itertools.islice(rest, self.index))
        if passed < self.index:
            raise ArgumentError(
                "the source has fewer batches than when its position was saved",
                at=f"epoch {self.epoch}",
                found=f"{passed} batches",
                expected=f"at least {self.index}, as before",
                do="resume with the same data and the same batch size",
            )
        return rest

    def _end_epoch(self) -> None:
        if self.index == 0:
            raise ArgumentError(
                "an epoch has no batches",
                at=f"epoch {self.epoch}",
                found="an empty source",
                expected="at least one batch in each epoch",
                do="check the data, or pass a function that makes a new iterator: Batches(lambda epoch: ...)",
            )
        self.epoch, self.index, self._rest = self.epoch + 1, 0, None

    def get_state(self) -> dict[str, int]:
        """The position: the epoch, and the number of its batches so far."""
        return {"epoch": self.epoch, "index": self.index}

    def set_state(self, state: dict[str, int], /) -> None:
        """Go to a position that ``get_state`` returned."""
        self.epoch, self.index, self._rest = state["epoch"], state["index"], None


@contextlib.contextmanager
def limited(batches: Batches[Any], epochs: int) -> Iterator[None]:
    """End the data after this many epochs, or earlier, if it is limited to fewer, until the block ends."""
    own = batches.epochs
    batches.epochs = epochs if own is None else min(own, epochs)
    try:
        yield
    finally:
        batches.epochs = own


def _is_function(source: Any) -> bool:
    return callable(source) and not isinstance(source, Iterable)


def _check_takes_epoch(source: Any) -> None:
    try:
        inspect.signature(source).bind(0)
    except ValueError:  # a builtin without a signature
        return
    except TypeError as error:
        raise ArgumentTypeError(
            "the source of batches does not take the number of an epoch",
            at=getattr(source, "__name__", type(source).__name__),
            found=str(error),
            expected="a function of the epoch, from 0",
            do="Batches(lambda epoch: make_iterator())",
        ) from error
