"""The checks of the arguments of ``fit``, before the first step."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...checkpoint.checkpoints import Checkpoints
from ...checkpoint.positions import has_position
from ...errors import ArgumentError, ArgumentTypeError
from ...util.counts import check_count
from .batches import Batches
from .callbacks import EarlyStop
from .saves import EVALUATION

DATA = "data"  # the name of the data iterator in checkpoints


def listed(given: Any) -> list[Any]:
    """One of a kind, or several, as a list."""
    return [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def check_kinds(
    step: object,
    objects: object,
    checkpoints: object,
    evaluate: object,
    loggers: Sequence[object],
    callbacks: Sequence[object],
) -> None:
    """Raise for an argument of another type.

    Raises:
        ArgumentTypeError: names it.
    """

    function, several = "a function", "{'model': model, 'optimizer': optimizer}"
    is_folder = checkpoints is None or isinstance(checkpoints, Checkpoints | str | os.PathLike)
    call = "callbacks=[lambda info: print(info.step, info.values)]"
    kinds = [
        ("step", step, callable(step), function, "fit(train_step, objects, data, ...)"),
        ("objects", objects, isinstance(objects, Mapping), "a dict", f"pass them by name: {several}"),
        ("checkpoints", checkpoints, is_folder, "Checkpoints, or a folder", "checkpoints='run/checkpoints'"),
        ("evaluate", evaluate, evaluate is None or callable(evaluate), function, "evaluate=lambda: {'loss': loss}"),
        *((f"loggers[{n}]", each, hasattr(each, "write"), "write and close", call) for n, each in enumerate(loggers)),
        *((f"callbacks[{n}]", each, callable(each), function, call) for n, each in enumerate(callbacks)),
    ]
    for name, value, is_right, expected, do in kinds:
        if not is_right:
            kind, shown = type(value).__name__, f"{value!r:.80}"
            raise ArgumentTypeError(
                "an argument of fit is of another type",
                at=name,
                found=f"{shown} of type {kind}",
                expected=expected,
                do=do,
            )


def check_intervals(evaluate: object, callbacks: Sequence[object], **numbers: int | None) -> None:
    """Raise for a number of steps that is below 1 or missing, and for arguments that need an evaluation."""
    for name, value in numbers.items():
        if value is not None:
            check_count(name, value, name if name == "epochs" else "steps")
    if numbers["steps"] is None and numbers["epochs"] is None:
        raise ArgumentError(
            "the run has no end",
            at="steps",
            found="neither steps nor epochs",
            expected="one of them",
            do="for example fit(step, objects, data, epochs=3)",
        )
    if evaluate is None and numbers["evaluate_every"] is not None:
        raise ArgumentError(
            "there is nothing to evaluate",
            at="evaluate_every",
            found=f"evaluate_every={numbers['evaluate_every']} without evaluate",
            expected="both, or neither",
            do="pass `evaluate=lambda: {'loss': loss(model, x)}`, or leave out evaluate_every",
        )
    for n, each in enumerate(callbacks):
        if isinstance(each, EarlyStop) and each.name.startswith(EVALUATION) and numbers["evaluate_every"] is None:
            raise ArgumentError(
                "a metric that ends training early is only evaluated at the end",
                at=f"callbacks[{n}]",
                found=f"EarlyStop({each.name!r}, ...) without evaluate_every",
                expected="an interval of evaluations",
                do="pass evaluate= and evaluate_every=100, or stop by a metric of the step",
            )


def arguments_of(step: Callable[..., Any], objects: Mapping[str, Any]) -> tuple[Any, ...]:
    """The objects in the order in which a step takes them. JAX sorts dicts, so ``objects`` may have another.

    Raises:
        ArgumentError: only some of the parameters have the names of objects, and one would get another object.
    """
    try:
        names = [*inspect.signature(step).parameters][: len(objects)]
    except (TypeError, ValueError):  # it has no signature
        return tuple(objects.values())
    if set(names) == set(objects):
        return tuple(objects[name] for name in names)
    mixed_up = [(name, given) for name, given in zip(names, objects, strict=False) if name != given and name in objects]
    if mixed_up:
        name, given = mixed_up[0]
        raise ArgumentError(
            "a parameter of the step would get another object than the one of its name",
            at=f"step({', '.join(names)}, …)",
            found=f"objects in the order {', '.join(objects)}: {name} would be {given}",
            expected="parameters with the names of the objects, or objects in the order of the parameters",
            do=f"name the parameters of the step as the objects: {', '.join(objects)}",
        )
    return tuple(objects.values())


def check_object_names(objects: Mapping[str, Any]) -> None:
    """Raise for an object with the name of the position in the data."""
    if DATA in objects:
        raise ArgumentError(
            "an object has the name under which checkpoints store the position in the data",
            at=f"objects[{DATA!r}]",
            found=f"a {type(objects[DATA]).__name__}",
            expected="another name",
            do="rename it: objects={'model': model, 'dataset': ...}",
        )


def iterator_of(data: Any, *, needs_position: bool, counts_epochs: bool = False) -> Any:
    """The data as an iterator; an iterable without a position is wrapped in ``Batches``.

    Raises:
        ArgumentTypeError: it has a position but is not an iterator, or lacks a position that is needed, or its epochs
            are to be counted but it is an iterator other than ``Batches``.
    """
    positioned = has_position(data)
    if not isinstance(data, Iterator):
        if positioned:
            raise ArgumentTypeError(
                "the data has a position, but no next batch",
                at="data",
                found=f"a {type(data).__name__} with get_state and set_state, but without __next__",
                expected="an iterator, or an iterable without a position",
                do="pass the iterator itself, which has get_state and set_state: iter(data)",
            )
        return Batches(data)
    if needs_position and not positioned:
        raise ArgumentTypeError(
            "a checkpoint cannot save the position of this data iterator",
            at="data",
            found=f"a {type(data).__name__} without get_state and set_state",
            expected="an iterator with both, or an iterable that can be iterated over again",
            do="pass the iterable itself, or Batches(lambda epoch: make_iterator(epoch))",
        )
    if counts_epochs and not isinstance(data, Batches):
        raise ArgumentTypeError(
            "the epochs of this data iterator cannot be counted",
            at="data",
            found=f"epochs, and a {type(data).__name__}",
            expected="an iterable, a function of the epoch, or Batches",
            do="limit it where it is made: prefetch(Batches(source, epochs=3)), with steps=1_000_000",
        )
    return data
