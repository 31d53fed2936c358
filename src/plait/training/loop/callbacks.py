"""Callbacks of ``fit``: their argument, early stopping, and the states that checkpoints save."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ...checkpoint.orbax import plain_extra
from ...checkpoint.positions import has_position
from ...errors import ArgumentError
from ...util.sentinels import NOTHING
from .step_results import stored_number


@dataclasses.dataclass
class CallbackInfo:
    """The argument of a callback of ``fit``.

    Attributes:
        step: the number of steps after which the metrics were computed.
        values: metrics by name, of the step or of the evaluation; the latter's names begin with ``eval/``.
        objects: the ``objects`` of ``fit``. They may be some steps ahead, fewer when a run ends: so that an interrupted
            run gives the same numbers, change them by the metrics of evaluations alone.
        stop: call it with a reason to end training after the current step.
    """

    step: int
    values: Mapping[str, float]
    objects: Mapping[str, Any]
    stop: Callable[[str], None]


def check_objects(given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise if a callback has replaced an object: the step would go on with the old one.

    Args:
        given: those that it was given, as they are now.
        own: those of the run.

    Raises:
        ArgumentError: one is another, is new or is missing; names it.
    """
    odd = [name for name in {**own, **given} if given.get(name, NOTHING) is not own.get(name, NOTHING)]
    if odd:
        raise ArgumentError(
            "a callback has replaced an object of fit",
            at=f"objects[{odd[0]!r}]",
            found=f"another {type(given[odd[0]]).__name__}" if odd[0] in given else "none",
            expected="the object that fit was called with, which the step goes on with",
            do=f"change it in place: plait.update(info.objects[{odd[0]!r}], plait.state(new))",
        )


class EarlyStop:
    """A callback for early stopping: ends training when a metric has stopped improving.

    Its state is saved in checkpoints, so a resumed run stops at the same step as an uninterrupted one; with a metric of
    steps, which it hears of up to two steps late, possibly so much earlier. A run that it has ended does not go on when
    it is started again.

    Args:
        name: the metric, such as ``"eval/loss"``.
        patience: how many times in a row it may fail to improve.
        mode: ``"min"`` if lower is better, ``"max"`` if higher is better.
        by: the minimum change that counts as an improvement.

    Raises:
        ArgumentError: ``patience`` is below 1, or the ``mode`` is another one.
    """

    def __init__(self, name: str, *, patience: int, mode: str = "min", by: float = 0.0) -> None:
        if mode not in ("min", "max") or patience < 1:
            raise ArgumentError(
                "early stopping needs a direction and some patience",
                at="EarlyStop",
                found=f"mode={mode!r}, patience={patience!r}",
                expected="mode 'min' or 'max', and a patience of 1 or more",
                do="EarlyStop('eval/loss', patience=3, mode='min')",
            )
        self.name, self.patience, self.mode, self.by = name, patience, mode, by
        self.best = math.inf
        self.worse = 0

    def __call__(self, info: CallbackInfo) -> None:
        if self.name not in info.values:
            return
        value = info.values[self.name] * (1 if self.mode == "min" else -1)
        self.worse = 0 if value < self.best - self.by else self.worse + 1
        self.best = min(self.best, value)
        if self.stopped:
            info.stop(self.stopped)

    @property
    def stopped(self) -> str | None:
        """Why it has ended the run; ``None`` if it has not."""
        better = "lower" if self.mode == "min" else "higher"
        return f"no {better} {self.name} {self.patience} times" if self.worse >= self.patience else None

    def get_state(self) -> dict[str, Any]:
        """The best value so far (``None`` if there is none), and how many times in a row it has not improved."""
        return {"best": None if self.best == math.inf else stored_number(self.best), "worse": self.worse}

    def set_state(self, state: Mapping[str, Any], /) -> None:
        """Continue from a state that ``get_state`` returned."""
        self.best = math.inf if state["best"] is None else float(state["best"])
        self.worse = state["worse"]


class Callbacks:
    """The callbacks of a run.

    Attributes:
        all: also those that have failed.
        are_over: whether none is called any more: in a multi-process run one has failed, here or in another process.
    """

    def __init__(self, callbacks: Sequence[Callable[[CallbackInfo], Any]]) -> None:
        self.all, self._listening = callbacks, [*callbacks]
        self._restored: Mapping[str, Any] = {}  # the states in the checkpoint, also of another phase
        self.are_over = False

    def call(self, info: CallbackInfo, own: Mapping[str, Any], *, is_alone: bool) -> None:
        """Call those that have not failed; in a multi-process run, none after one that fails.

        Args:
            own: the objects of the run.
            is_alone: whether the run has one process.
        """
        failed: list[Exception] = []
        for callback in [*self._listening]:
            if self.are_over:  # asked in this place: ``Run.when_stuck`` sets it, and then looks here
                return
            try:
                callback(info)
                check_objects(info.objects, own)
            except BaseException as error:
                if not (is_alone and isinstance(error, Exception)):  # other processes would wait for this one
                    self.are_over = True
                    raise
                self._listening = [each for each in self._listening if each is not callback]
                failed.append(error)
        if failed:  # after all others have seen this step
            raise failed[0]

    def states(self, attempt: Callable[..., object]) -> dict[str, Any]:
        """The states of the callbacks, by name; one that cannot be saved is left out.

        Those of an earlier phase, another call of ``fit`` with the same checkpoints, stay: after a restart, its
        callbacks know that it has ended.

        Args:
            attempt: called with the function that adds a state, which may raise, and its arguments.
        """
        own = dict(named(self.all))
        states: dict[str, Any] = {name: state for name, state in self._restored.items() if name not in own}

        def add(name: str, callback: Any) -> None:
            states.update(plain_extra({name: callback.get_state()}))

        for name, callback in own.items():
            attempt(add, name, callback)
        return states

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Restore the states in the extra data of a checkpoint."""
        self._restored = own_states(extra)
        restore_states(self.all, self._restored)

    @property
    def stopped(self) -> list[str]:
        """Why those that have been restored have ended the run before."""
        return [*filter(None, (getattr(each, "stopped", None) for each in self.all))]


def states_of(callbacks: Iterable[Any]) -> dict[str, Any]:
    """The states of the callbacks that have ``get_state`` and ``set_state``, by their names."""
    return {name: callback.get_state() for name, callback in named(callbacks)}


_OF_FIRST = "callbacks"  # in the extra data of checkpoints: the states in process 0
_OF_ALL = "callbacks of processes"  # those in each process, if they differ


def stored_states(of_all: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states of all processes as extra data of a checkpoint."""
    stored: dict[str, Any] = {_OF_FIRST: of_all[0]} if any(of_all) else {}
    return {**stored, _OF_ALL: of_all} if any(each != of_all[0] for each in of_all) else stored


def own_states(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """The states of this process in the extra data of a checkpoint; of process 0 if the number of processes differs."""
    of_all = extra.get(_OF_ALL, ())
    return of_all[jax.process_index()] if len(of_all) == jax.process_count() else extra.get(_OF_FIRST, {})


def restore_states(callbacks: Iterable[Any], states: Mapping[str, Any]) -> None:
    """Restore these states; callbacks that were not saved do not change."""
    for name, callback in named(callbacks):
        if name in states:
            callback.set_state(states[name])


def named(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The callbacks with a state, by class name, and by their own name if they have one; equal ones are numbered."""
    count: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        if has_position(callback):
            own = getattr(callback, "name", None)
            name = type(callback).__name__ + (f" of {own}" if isinstance(own, str) else "")
            count[name] += 1
            yield (name if count[name] == 1 else f"{name} {count[name]}"), callback
