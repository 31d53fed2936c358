"""``fit``: a fault-tolerant training loop around your own step function.

It does what you would otherwise write around a step: resume from a checkpoint, log metrics, evaluate and save
periodically, and stop cleanly on a signal. The step, the model, the optimizer and the data are yours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from ...checkpoint.checkpoints import Checkpoints
from ...partitioning.processes.all_processes import run_on_all
from ...partitioning.processes.connect import all_report
from .callbacks import CallbackInfo
from .fit_arguments import check_intervals, check_kinds, listed
from .loggers import Logger
from .processes.agreement import check_same
from .progress import ENDLESS
from .run import FitResult, Run


def fit(
    step: Callable[..., Any],
    objects: Mapping[str, Any],
    data: Iterable[Any],
    *,
    steps: int | None = None,
    epochs: int | None = None,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    evaluate: Callable[[], Mapping[str, Any]] | None = None,
    evaluate_every: int | None = None,
    log_every: int | None = 100,
    loggers: Sequence[Logger] | Logger = (),
    callbacks: Sequence[Callable[[CallbackInfo], Any]] | Callable[[CallbackInfo], Any] = (),
    data_timeout: float | None = None,
    show: bool = True,
) -> FitResult:
    """Train for a number of steps or epochs, with checkpoints, evaluation and logs.

    With ``checkpoints`` it resumes from the newest one, and saves every ``save_every`` steps and at the end. SIGINT
    (Ctrl-C) and SIGTERM end training after the current step, with a checkpoint, and without waiting for data that has a
    position; a second signal interrupts at once. Inside a step or a callback of another ``fit``, it goes on to its end,
    and the outer one ends after this step; inside an evaluation it ends, and the resumed run evaluates again. If the
    data iterator raises or takes too long, or the evaluation or a callback raises, the state is saved and the error
    raised. If a step raises, training ends at once; the newest checkpoint is the last periodic one. If a logger raises,
    it is closed with a ``LoggerWarning``, and training continues. Only the main thread hears signals: in another one,
    ``fit`` does not end with a checkpoint by them. Handlers of SIGCHLD, such as PyTorch's for a worker that has died,
    are called while a batch is being read.

    In a multi-process run, all processes call it with the same arguments, and what ends one of them (a signal, an
    error, the end of its data) ends all after the same step, at most two later. All raise the error of the first
    that failed. Up to three batches are read ahead, and read again on resume. So a batch must not depend on the model,
    and an evaluation needs an iterator of its own. An iterator without a position loses what was read ahead at the end.
    NumPy arrays are copied, also those in mappings and JAX trees, but the data must not fill other buffers, such as one
    tensor of PyTorch, again. Data loading must not run collectives. The processes must wait for each other in each
    step, as they do to compute the mean loss. (docs/reliability.md)

    Args:
        step: ``step(*objects, batch)``, usually jitted: its parameters have the names of the objects, in any order,
            or others, in the order of ``objects``. Its result is logged: a scalar as ``loss``, or scalars by name.
        objects: the objects to save in checkpoints, by name: the model, the optimizer, metrics, random streams. The
            name ``data`` is that of the position in the data. What each of several processes has a copy of must be
            equal in all: the copy of process 0 is saved.
        data: an iterator over batches, or an iterable, which is wrapped in ``Batches``. To resume from a checkpoint,
            an iterator needs ``get_state`` and ``set_state``.
        steps: the total number of steps, including those before a resumed checkpoint.
        epochs: instead, the total number of epochs, of an iterable or of ``Batches``. With both, what comes first.
        checkpoints: the checkpoints of the run, or their folder; ``None`` saves none.
        save_every, evaluate_every, log_every: the interval in steps; ``None`` means only at the end.
        evaluate: returns metrics of the current objects by name. They are logged as ``eval/name``, and saved as metrics
            of the next checkpoint. A run that a signal ends saves its checkpoint first, or during the evaluation.
        loggers: one or several, where to log metrics; in a multi-process run, on process 0, unless a logger asks for
            all.
        callbacks: one or several, called with a ``CallbackInfo``, after the loggers; in a multi-process run, after the
            same steps in all processes. The states of those with ``get_state`` and ``set_state`` are saved in
            checkpoints, for each process its own. If one has an attribute ``stopped`` that is a reason after it was
            restored, the run has ended.
        data_timeout: the maximum time to wait for a batch, in seconds; ``None`` for no limit. With a limit the data is
            read in a thread, and ``fit`` hears signals also while the data waits in compiled code, or in Python code
            that catches every exception.
        show: whether to show progress on standard output, of process 0.

    Returns:
        The step, the last metrics, and why training ended.

    Raises:
        ArgumentError: a number of steps is below 1, an object has the name ``data``, a parameter of ``step`` would
            get another object than the one of its name, another process has other arguments, or ``EarlyStop`` or
            ``Keep`` waits for a metric that the step or the evaluation does not return.
        ArgumentTypeError: an argument is of another type; there are ``checkpoints``, but the data iterator has no
            position, or an object, a position or the state of a callback cannot be saved; ``epochs`` are given, but
            those of the data iterator cannot be counted; or ``step`` returned something other than numbers.
        DataError: no batch arrived in time. The state is saved.
        NonFiniteError: the loss is NaN or infinite, or a parameter that would be saved is NaN; names the non-finite
            variables. The state is not saved. The loss is the metric ``loss``, or those with this word in their names.
        CheckpointError: a checkpoint could not be written, or the newest does not match the objects.

    Warns:
        LoggerWarning: a logger could not write, and is closed.
        CheckpointWarning: of several processes, the copies that are saved begin with different values; or an
            evaluation takes batches that the training has not read yet; or the data cannot go back at the end.

    Example:
        >>> model = plait.Linear(1, 1, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)
        >>> @plait.jit
        ... def step(model, optimizer, batch):
        ...     x, y = batch
        ...     loss, grads = plait.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        ...     optimizer.update(model, grads)
        ...     return loss
        >>> x = jnp.linspace(-1, 1, 8)[:, None]
        >>> result = plait.training.fit(
        ...     step, {"model": model, "optimizer": optimizer}, [(x, 3 * x)], steps=200, show=False
        ... )
        >>> result.step, result.reason, round(float(model.kernel[0, 0]), 2)
        (200, 'steps', 3.0)
    """
    every = {"save_every": save_every, "evaluate_every": evaluate_every, "log_every": log_every}
    heard, called = listed(loggers), listed(callbacks)

    def check() -> None:
        check_kinds(step, objects, checkpoints, evaluate, heard, called)
        check_intervals(evaluate, called, steps=steps, epochs=epochs, **every)

    with contextlib.ExitStack() as held:
        try:
            run_on_all(check)  # the others do not wait for one whose arguments are wrong
            if jax.process_count() > 1:
                are_there = {"checkpoints": checkpoints is not None, "evaluate": evaluate is not None}
                intervals = {"save_every": save_every, "evaluate_every": evaluate_every}
                check_same({"steps": steps, "epochs": epochs, **intervals, **are_there, "objects": sorted(objects)})
            if isinstance(checkpoints, str | os.PathLike):
                checkpoints = held.enter_context(Checkpoints(checkpoints))
            arguments = step, dict(objects), data, checkpoints, evaluate, heard, called, data_timeout, epochs
            run = run_on_all(lambda: Run(*arguments))
        except Exception as error:
            all_report(error)
            raise
        return run.train(ENDLESS if steps is None else steps, **every, show=show)
