"""The metrics of a run: those that are not computed yet, the newest of each name, and where they are logged and shown.

Metrics stay on the device until they are computed. The loop reads them after it has dispatched a later step, so no
step waits for logging.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from ...errors import ArgumentError, LoggerWarning
from ...util.notices import warn
from ...util.words import text_of
from .loggers import Logger
from .progress import Lines, Progress, progress
from .saves import EVALUATION
from .step_results import check_metric_names, is_there, numbers_of


class Reports:
    """The metrics of a run.

    Args:
        loggers: where they are logged.
        awaited: the names of metrics, by what waits for them.
        evaluates: whether the run evaluates.

    Attributes:
        values: the newest metrics by name.
        pending: the steps whose metrics are still to be read, oldest first, with their results and times.
        noted: the last step whose metrics are read, or are to be.
    """

    _display: Progress
    _lines: Lines

    def __init__(self, loggers: Sequence[Logger], awaited: Mapping[str, str], *, evaluates: bool) -> None:
        is_first = jax.process_index() == 0
        # Of processes other than the first, those that ask for it.
        self._loggers = [each for each in loggers if is_first or getattr(each, "every_process", False)]
        self._awaited, self._evaluates = awaited, evaluates
        self.values: dict[str, float] = {}
        self.pending: collections.deque[tuple[int, Any, float]] = collections.deque()
        self.noted = 0

    @contextlib.contextmanager
    def shown(self, steps: int, done: int, show: bool) -> Iterator[Progress]:
        """Show the progress of the run until the block ends; then close the loggers."""
        self._lines = Lines(steps, done)
        with contextlib.ExitStack() as held:
            for logger in self._loggers:
                held.callback(_close, logger)
            shows = show and jax.process_index() == 0
            self._display = held.enter_context(progress(steps, done=done)) if shows else Progress()
            yield self._display

    def add(self, step: int, returned: Any) -> None:
        """Have the metrics of this step read when they are computed."""
        self.pending.append((step, returned, time.perf_counter()))
        self.noted = step

    def computed(self, at_least: int, *, more: bool) -> Iterator[tuple[int, dict[str, float], float]]:
        """Step, metrics and time of pending ones.

        Args:
            at_least: how many to wait for.
            more: whether those after them that are computed follow.
        """
        while self.pending and (at_least > 0 or (more and is_there(self.pending[0][1]))):
            at_least -= 1
            step, returned, when = self.pending.popleft()
            values = numbers_of(returned)
            check_metric_names(values)
            yield step, values, when

    def check_awaited(self, *, of_evaluation: bool) -> None:
        """Raise if a metric that is waited for is not among those of a step, or of an evaluation, that were reported.

        Raises:
            ArgumentError: names what waits, and lists the metrics that there are.
        """
        for who, name in self._awaited.items():
            is_due = name.startswith(EVALUATION) == of_evaluation or not (of_evaluation or self._evaluates)
            if is_due and name not in self.values:
                raise ArgumentError(
                    "a metric that is waited for is not returned",
                    at=who,
                    found=f"{name!r}" + ("" if self._evaluates else ", and evaluate=None"),
                    expected=f"one of {', '.join(map(repr, self.values)) or 'none, since the step returns no metrics'}",
                    do="name one of these, or let the step, or evaluate, return it; those of evaluate begin with eval/",
                )

    def write(self, step: int, values: dict[str, float]) -> None:
        """Log metrics. A logger that fails is given up, with a warning, which may be an error."""
        for logger in list(self._loggers):
            try:
                logger.write(step, values)
            except Exception as error:
                self._loggers.remove(logger)
                warn(
                    LoggerWarning,
                    f"{type(logger).__name__} could not write step {step}, and is disabled: "
                    f"{type(error).__name__}: {text_of(error)}",
                )

    def show(self, step: int, values: dict[str, float], when: float) -> None:
        """Print the line of a step."""
        self._display.say(self._lines.line(step, values, when))


def _close(logger: Logger) -> None:
    with contextlib.suppress(Exception):
        logger.close()
