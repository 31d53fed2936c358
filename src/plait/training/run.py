"""A run: what one call of ``fit`` does, from the checkpoint that it resumes from to the last one that it saves.

Metrics stay on the device until they are computed. The loop reads them after it has dispatched a later step, so no
step waits for logging.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax

from ..checkpoint.all_processes import run_on_all
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.orbax import described, plain_extra
from ..checkpoint.positions import has_position
from ..core.objects.variable_kinds import Param
from ..errors import (
    CheckpointError,
    CheckpointWarning,
    LoggerWarning,
    NonFiniteError,
    ProcessError,
)
from ..ground.words import first_few, text_of
from ..observing.nonfinite import has_nan
from ..partitioning.launched import is_launched, saving
from ..partitioning.processes import all_report, end_at_exit, end_at_once, is_loss
from .agreement import PATIENCE, Ending, MultiProcess, SingleProcess, error_ending
from .ahead import NOTHING, Ahead, Pace
from .before_evaluation import BeforeEvaluation
from .callbacks import CallbackInfo, check_objects, named, own_states, restore_states, states_of, stored_states
from .children import Children
from .copies import warn_of_other_copies
from .finite import check_loss, not_finite
from .fit_arguments import DATA, arguments_of, check_object_names, iterator_of
from .loggers import Logger
from .profile import Profile
from .progress import Lines, Progress, progress
from .step_results import check_metric_names, is_there, numbers_of, restored_numbers, stored_numbers
from .timed_data import timed

BEHIND = 2  # the number of pending logs at which the loop waits for the oldest
EVALUATION = "eval/"  # the beginning of the names of an evaluation's metrics
CALLBACK, ERROR = "callback", "error"  # reasons of an end by an error
EVALUATED = "evaluated"  # the name of the step of the last evaluation in checkpoints
VALUES = "values"  # and of the last metrics


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The result of a call of ``fit``.

    Attributes:
        step: the number of completed steps, including those before a resumed checkpoint.
        values: the last metrics by name.
        reason: ``"steps"``, ``"data"`` (the data ended), the name of a signal, or a callback's reason.
    """

    step: int
    values: Mapping[str, float]
    reason: str

    @property
    def exit_status(self) -> int:
        """0, or if a signal ended the run, 128 and its number, as in shells.

        A program that ends with it is started again by whatever runs it: a scheduler takes 0 for finished.
        """
        number = getattr(signal, self.reason, None)
        return 128 + number if isinstance(number, signal.Signals) else 0


class Run:
    """One call of ``fit``."""

    def __init__(
        self,
        step: Callable[..., Any],
        objects: dict[str, Any],
        data: Any,
        checkpoints: Checkpoints | None,
        evaluate: Callable[[], Mapping[str, Any]] | None,
        loggers: Sequence[Logger],
        callbacks: Sequence[Callable[[CallbackInfo], Any]],
        data_timeout: float | None,
        profile: tuple[range, str] | None = None,
    ) -> None:
        is_first = jax.process_index() == 0
        self.step, self.objects, self.checkpoints, self.evaluate = step, objects, checkpoints, evaluate
        # Of processes other than the first, those that ask for it.
        self.loggers = [each for each in loggers if is_first or getattr(each, "every_process", False)]
        self.callbacks, self.listeners = callbacks, [*callbacks]
        self.profile = None if profile is None else Profile(*profile)
        self.arguments = arguments_of(step, objects)
        check_object_names(objects)
        self.data: Any = timed(iterator_of(data, needs_position=checkpoints is not None), data_timeout)
        self.pending: collections.deque[tuple[int, Any, float]] = collections.deque()
        self.values: dict[str, float] = {}
        self.unsaved: dict[str, float] = {}  # metrics of evaluations since the last checkpoint
        self.error: BaseException | None = None  # of this process
        self.unsavable: BaseException | None = None  # why nothing more is saved
        self.stopped: str | None = None  # why a run that has ended before does not go on
        self.earlier: Mapping[str, Any] = {}  # the states of callbacks in the checkpoint, also of another phase
        self.steps: int  # to do
        self.done = self.saved = 0
        self.first = 1  # the number of the first step of this call
        self.evaluated_at = self.tried_at = 0  # the steps of the last evaluation, and of the last that was begun
        self.before: BeforeEvaluation | None = None  # while one runs
        self.noted = 0  # the last step whose result is logged
        self.last: Any = None  # the result of the last step
        self.signalled: str | None = None
        self.handlers: dict[int, Any] = {}  # of signals, outside of this loop
        self.process = os.getpid()
        self.children = Children()
        self.agreement: SingleProcess | MultiProcess = SingleProcess()
        self.is_alone = jax.process_count() == 1
        self.ending_here = threading.RLock()  # held by the thread that ends the run, if it is stuck
        self.place: object | None = None  # where the user's code may wait for another process, outside of a step
        self.callbacks_are_over = False  # one has failed, here or in another process
        self.has_passed_on = self.has_heard = self.has_heard_signal = False
        self.is_taken_over = self.has_met = self.has_left = self.wakes = False
        self.is_cut_short = False  # a signal has ended this loop, or one inside it, before its last step
        self.ends_here = False  # as all know: an evaluation has failed, in which some processes wait
        self.display: Any = None
        self.lines: Lines

    def go(
        self,
        steps: int,
        save_every: int | None,
        evaluate_every: int | None,
        log_every: int | None,
    ) -> FitResult:
        is_due = evaluate_every is not None and 0 < self.done <= steps and self.done % evaluate_every == 0
        if is_due and self.stopped is None:
            self.attempt(self.evaluate_once)  # the run may have ended before its evaluation at this step
            if save_every is not None and self.done % save_every == 0 and not self.ends_here:
                self.attempt(self.save)  # its metrics are those of this checkpoint
        act, arguments, profile = self.step, self.arguments, self.profile
        while (batch := self.next_batch(self.done + 1, steps)) is not NOTHING:
            number = self.done + 1
            if profile is not None and profile.begins(number):
                self.attempt(profile.begin)
            returned = self.last = act(*arguments, batch)
            if not self.is_alone:
                self.pace.keep(returned)
            self.done = number
            if profile is not None and profile.ends(number):
                self.attempt(profile.end, returned)
            is_logged = number == steps or (log_every is not None and number % log_every == 0)
            if is_logged or self.pending:
                self.attempt(self.look_after, number, is_logged)
            if evaluate_every is not None and number % evaluate_every == 0:
                self.attempt(self.evaluate_once)
            if save_every is not None and number % save_every == 0 and number < steps and not self.ends_here:
                self.attempt(self.save)
            self.display.advance()
        return self.finish()

    def next_batch(self, number: int, steps: int) -> Any:
        """The batch of this step, or ``NOTHING`` if it is not done."""
        if self.is_alone and self.signalled is None and self.agreement.ending is None and number <= steps:
            batch = self.ahead.fetch()
            if batch is not NOTHING:
                return batch
            self.pass_on_end()
        return self.ahead.take() if self.begins(number, steps) else NOTHING

    def begins(self, number: int, steps: int) -> bool:
        """Whether this step is done, by all processes; then its batch is in hand."""
        self.pass_on_signal()
        if number > steps:
            self.agreement.call(Ending("steps", "steps", last=steps))
        if self.ends_here:  # all know, so nothing is left to agree on but the last step
            return self.agreement.begins(number, self.ahead.last, True)
        goes_on = self.agreement.ending is None and not self.has_passed_on
        if goes_on and self.ahead.ended is None and not self.is_alone:
            self.ahead.fill(number, steps)
            self.pass_on_end()
        self.pass_on_signal()  # one that came while the data was waited for
        if number == self.first:
            self.agreement.await_first_batches(self.ahead.ended is not None or self.has_passed_on)
        if not self.is_alone and number <= steps and not self.pace.wait(self.objects):
            self.agreement.keep_pace(number)
        if not self.agreement.begins(number, self.ahead.last, self.ahead.ended is not None or self.has_passed_on):
            return False
        if self.ahead.last < number:  # processes that do not wait for each other may have far to go to the last step
            self.ahead.fill(number, number)
        if self.ahead.last < number:
            raise ProcessError(
                "the processes of this run are at different steps, and cannot end at the same one",
                at=f"process {jax.process_index()}",
                found=f"another has begun step {number}, for which this one has no batch",
                expected="steps in which the processes wait for each other, as for the loss of all",
                do="resume from the newest checkpoint, with data of the same length on all processes",
            )
        return True

    def pass_on_signal(self) -> None:
        if self.signalled is not None and not self.has_passed_on:
            self.has_passed_on = True
            self.agreement.call(Ending("signal", self.signalled))

    def pass_on_end(self) -> None:
        """Tell if there are no more batches."""
        if isinstance(self.ahead.ended, StopIteration):
            self.agreement.call(Ending(DATA, DATA, last=self.ahead.last))
        elif self.ahead.ended is not None:
            self.fail(self.ahead.ended, last=self.ahead.last)

    def attempt(self, act: Callable[..., object], *arguments: Any) -> None:
        """Act; an error ends the run at a step that all processes complete."""
        try:
            act(*arguments)
        except BaseException as error:  # also SystemExit
            if isinstance(error, KeyboardInterrupt) and self.signalled is not None:  # a second signal
                raise
            self.fail(error)

    def fail(self, error: BaseException, last: int = 0) -> None:
        """End the run with this error, after the step ``last`` or as soon as possible."""
        if self.error is None or (isinstance(self.error, SystemExit) and not self.error.code):  # not a success
            self.error = error
        elif error is not self.error and isinstance(error, NonFiniteError | CheckpointError):
            warnings.warn(str(error), CheckpointWarning, stacklevel=2)  # the run ends with the first one
        self.agreement.call(error_ending(error, reason=CALLBACK if self.callbacks_are_over else ERROR, last=last))

    def finish(self) -> FitResult:
        """What is left to do after the last step. All processes have done the same steps."""
        ending = self.agreement.ending
        assert ending is not None
        if ending.kind == "lost":
            raise ending.raised or AssertionError("an ending of this kind has an error")
        was_cut_short = ending.kind == "signal" and self.done < self.steps
        if was_cut_short:
            self.cut_short()
        self.log_rest(not was_cut_short and ending.kind != "error")
        is_whole = not was_cut_short and ending.kind != "error" and not self.is_taken_over
        # A later phase of the run may have done more, or this one may have ended before.
        if self.evaluate is not None and is_whole and self.done <= self.steps and self.stopped is None:
            self.attempt(self.evaluate_once)
        self.attempt(self.save)
        self.attempt(self.wait)
        error = self.agreement.first_error(self.error)
        self.has_met = True
        if isinstance(error, SystemExit) and not self.is_alone:
            end_at_exit(error)
        if error is not None:
            raise all_report(error)
        return FitResult(self.done, self.values, ending.reason)

    def log_rest(self, with_last: bool) -> None:
        if with_last and self.last is not None and self.noted < self.done:
            self.pending.append((self.done, self.last, time.perf_counter()))
        while self.pending:  # also after an error: callbacks of other processes may wait for those of this one
            self.attempt(self.look, len(self.pending))

    # Numbers ----------------------------------------------------------------------------------------------------------

    def look_after(self, number: int, is_logged: bool) -> None:
        """Log what is ready after a step."""
        if is_logged:
            self.pending.append((number, self.last, time.perf_counter()))
            self.noted = number
        if self.is_alone:
            self.look(at_least=len(self.pending) - BEHIND if is_logged else 0)
        else:  # at the same step in all processes: callbacks may use the devices of all
            self.look(at_least=sum(step <= number - BEHIND for step, *_ in self.pending))

    def look(self, at_least: int) -> None:
        """Wait for the first ``at_least`` pending metrics and log them; alone, a process logs all that are ready."""
        while self.pending and (at_least > 0 or (self.is_alone and is_there(self.pending[0][1]))):
            at_least -= 1
            number, returned, when = self.pending.popleft()
            values = numbers_of(returned)
            check_metric_names(values)
            self.tell(number, values, when)
            with self.saving_nothing_after():
                check_loss(number, values, self.objects)

    def evaluate_once(self) -> None:
        """Evaluate after this step, unless that is done, and log the metrics."""
        assert self.evaluate is not None
        if self.done in (self.evaluated_at, self.tried_at):
            return
        self.tried_at = self.done
        self.attempt(self.look, len(self.pending))
        with self.waiting_for_others(f"evaluation/{self.done}"):
            self.ends_here = True
            self.keep_before(BeforeEvaluation(self.objects))
            try:
                found = self.evaluated()
            finally:
                self.keep_before(None)
            if found is not None:
                self.ends_here = False
                self.evaluated_at = self.done
                self.ahead.look_again()
                self.unsaved |= found
                self.tell(self.done, found, time.perf_counter())

    def evaluated(self) -> dict[str, float] | None:
        """The metrics of an evaluation; ``None`` if it failed or was cut short: the resumed run evaluates."""
        self.is_cut_short = False
        own = "failed" if self.error else "signal" if self.signalled or self.has_heard_signal else ""
        word = self.agreement.worst(own, f"before/{self.done}")
        if word == "signal":
            before = self.before
            self.keep_before(None)
            self.save()  # whoever sent the signal may not wait for the evaluation
            self.wait()
            self.keep_before(before)
        if "failed" in (own, word) or self.has_heard:  # another process would be waited for
            self.agreement.worst("failed", f"after/{self.done}")
            self.agreement.end_after(self.done)
            return None
        assert self.evaluate is not None
        try:
            found = {f"{EVALUATION}{name}": value for name, value in numbers_of(self.evaluate()).items()}
        except BaseException as error:
            if not self.is_cut_short or not isinstance(error, Exception) or is_loss(error):
                self.undo_evaluation()
                with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
                    self.agreement.worst("failed", f"after/{self.done}")
                raise
            found = {}  # it may want the numbers of a loop that was ended before it had any
        word = self.agreement.worst("cut short" if self.is_cut_short else "", f"after/{self.done}")
        if word:
            self.undo_evaluation(must=word == "failed")
            self.agreement.end_after(self.done)
            return None
        return found

    def keep_before(self, before: BeforeEvaluation | None) -> None:
        """Keep the state from before an evaluation, until it is over, and until a thread has saved it."""
        with self.ending_here:
            self.before = before

    @contextlib.contextmanager
    def waiting_for_others(self, name: str) -> Iterator[None]:
        """Mark code of the user that may wait for a process that has failed: then ``when_stuck`` ends this one."""
        outer, self.place = self.place, self.place or object()
        try:
            with self.agreement.in_users_code(name):
                yield
        finally:
            self.place = outer
            with self.ending_here:  # held by the thread that ends the process
                assert not self.is_taken_over

    def undo_evaluation(self, *, must: bool = True) -> None:
        """Give the objects their values from before an evaluation that failed.

        Args:
            must: whether the state is not saved if a parameter has been donated.
        """
        before = self.before
        if before is None:
            return
        donated = before.donated_parameters() if must and self.checkpoints is not None else []
        if donated:
            self.unsavable = self.unsavable or CheckpointError(
                f"the state after step {self.done} is not saved: the evaluation that failed has donated a part of it",
                at=first_few(donated, 5),
                found="deleted arrays, and what the evaluation has made of them",
                expected="arrays to go back to",
                do="evaluate plait.clone(model, arrays=True), or without donation; resume from the newest checkpoint",
            )
        before.put_back(self.objects)

    def save_before(self) -> None:
        """Save the state from before the evaluation that runs: whoever has sent a signal may not wait for its end."""
        with self.ending_here:
            self.has_heard_signal = True
            can = self.before is not None and not self.before.is_donated
            if not self.agreement.worst("" if can else "no", "signal"):  # all can
                kept = self.saved, self.unsaved, self.unsavable
                try:
                    self.save()
                    self.wait()
                except Exception:  # it is saved again when the evaluation is over
                    self.saved, self.unsaved, self.unsavable = kept

    def tell(self, number: int, values: dict[str, float], when: float) -> None:
        """Pass metrics to the loggers and callbacks."""
        if not values:
            return
        self.values |= values
        self.attempt(self.write, number, values)  # callbacks of this step in other processes may wait for those here
        if not self.callbacks_are_over:
            self.tell_callbacks(CallbackInfo(number, values, {**self.objects}, self.stop))
        self.display.say(self.lines.line(number, values, when))

    def write(self, number: int, values: dict[str, float]) -> None:
        """Log metrics. A logger that fails is given up, with a warning, which may be an error."""
        for logger in list(self.loggers):
            try:
                logger.write(number, values)
            except Exception as error:
                self.loggers.remove(logger)
                warnings.warn(
                    f"{type(logger).__name__} could not write step {number}, and is disabled: "
                    f"{type(error).__name__}: {text_of(error)}",
                    LoggerWarning,
                    stacklevel=2,
                )

    def tell_callbacks(self, info: CallbackInfo) -> None:
        """Call those callbacks that have not failed; in a multi-process run, none after that."""
        with self.waiting_for_others(f"callbacks/{info.step}"):
            failed: list[Exception] = []
            for callback in [*self.listeners]:
                if self.callbacks_are_over:  # asked in this place: ``when_stuck`` sets it, and then looks at the place
                    return
                try:
                    callback(info)
                    check_objects(info.objects, self.objects)
                except BaseException as error:
                    if not (self.is_alone and isinstance(error, Exception)):  # other processes would wait for this one
                        self.callbacks_are_over = True
                        raise
                    self.listeners = [each for each in self.listeners if each is not callback]
                    failed.append(error)
            if failed:  # the states of the others are those after this step all the same
                raise failed[0]

    # Checkpoints and the end ------------------------------------------------------------------------------------------

    def with_data(self, data: Any) -> dict[str, Any]:
        """What is saved and restored."""
        objects = self.objects if self.before is None else self.before.objects
        return {**objects, DATA: data} if has_position(self.data) else {**objects}

    def save(self) -> None:
        """Save, if there are new steps or evaluations, and the loss and the parameters are finite."""
        if self.checkpoints is None:
            return
        self.attempt(self.look, len(self.pending))  # what fails in it fails before the processes meet
        if not self.agreement.worst("new" if self.saved != self.done or self.unsaved else ""):
            return
        # All are here, so ``plait launch`` may wait: an earlier save may still have to end.
        with saving(), self.saving_nothing_after():
            self.save_together(self.checkpoints)

    def save_together(self, checkpoints: Checkpoints) -> None:
        """Save. All processes do, as they have agreed."""
        self.attempt(checkpoints.wait)  # an earlier save that failed ends the run; this one may go well
        extra: dict[str, Any] = {EVALUATED: self.evaluated_at, VALUES: stored_numbers(self.values)}

        run_on_all(self.check_whole)  # what may fail in one process alone, before they save together
        extra |= stored_states(self.agreement.gathered(self.states()))
        numbers = numbers_of(self.last)
        metrics = {name: value for name, value in self.values.items() if not name.startswith(EVALUATION)} | numbers
        checkpoints.save(self.done, self.with_data(self.ahead), metrics=metrics | self.unsaved, extra=extra)
        self.saved, self.unsaved = self.done, {}

    def states(self) -> dict[str, Any]:
        """The states of the callbacks; one that cannot be saved is left out, and ends the run.

        Those of an earlier phase, another call of ``fit`` with the same checkpoints, stay: after a restart, its
        callbacks know that it has ended.
        """
        own = {name for name, _ in named(self.callbacks)}
        states: dict[str, Any] = {name: state for name, state in self.earlier.items() if name not in own}

        def add(name: str, callback: Any) -> None:
            states.update(plain_extra({name: callback.get_state()}))

        for name, callback in named(self.callbacks):
            self.attempt(add, name, callback)
        return states

    def check_whole(self) -> None:
        """Raise if the state may not be saved."""
        if self.unsavable is not None:
            raise self.unsavable
        check_loss(self.done, numbers_of(self.last), self.objects)
        if self.has_nan():  # the loss was computed before the last update
            raise not_finite(f"parameters are NaN after step {self.done}", self.objects)

    def has_nan(self) -> bool:
        """Whether a parameter is NaN."""
        ending = self.agreement.ending
        may_wait = ending is not None and ending.error is not None  # a device, for another process
        on_host = may_wait or self.is_taken_over or self.error is not None or self.before is not None
        return has_nan(self.with_data(None), Param, on_host=on_host)

    def wait(self) -> None:
        """Wait until the last save is on disk."""
        if self.checkpoints is not None:
            with self.saving_nothing_after():
                self.checkpoints.wait()

    @contextlib.contextmanager
    def saving_nothing_after(self) -> Iterator[None]:
        """What a NaN or a failed write ends saves nothing more. The user's own code may raise such errors too."""
        try:
            yield
        except (NonFiniteError, CheckpointError) as error:
            self.unsavable = self.unsavable or error
            raise

    def stop(self, reason: str) -> None:
        """End after the current step."""
        self.agreement.call(Ending("callback", reason))

    def on_signal(self, number: int, _: Any) -> None:
        if os.getpid() != self.process:  # a child that was forked, such as a worker of the data
            signal.signal(number, self.handlers[number])
            signal.raise_signal(number)
            return
        if self.wakes:
            self.wakes = False
            self.ahead.interrupt()
            return
        if self.signalled is not None:
            if number == signal.SIGTERM and is_launched():
                return  # ``plait launch`` passes on what the process may have had itself; it kills at a second one
            self.ahead.is_interrupted = True
            raise KeyboardInterrupt from None  # of the request that it may interrupt
        outer = self.outer(number)
        if outer is not None and outer.before is None:  # it is in a step or a callback, which ends before it does
            outer.on_signal(number, _)
            return
        self.signalled = signal.Signals(number).name
        if self.before is not None:
            act = self.save_before if self.is_alone else self.pass_on_signal  # then a thread of every process saves
            threading.Thread(target=act, daemon=True, name="plait ends a run").start()
        if outer is not None:
            outer.on_signal(number, _)
        self.ahead.interrupt()

    def outer(self, number: int) -> Run | None:
        """The loop inside which this one runs, which a signal has to end too."""
        outer = getattr(self.handlers.get(number), "__self__", None)
        return outer if isinstance(outer, Run) else None

    def cut_short(self) -> None:
        """Note that a signal ends this loop before its last step: the evaluations around it are not whole."""
        self.is_cut_short = True
        outer = self.outer(signal.SIGTERM)
        if outer is not None:
            outer.cut_short()

    def pass_on_late_signal(self) -> None:
        """Let a signal that came too late to end this loop do what it does outside."""
        if self.signalled is not None:
            number = signal.Signals[self.signalled]
            if self.outer(number) is None:
                signal.raise_signal(number)

    def wake_later(self) -> None:
        """The run ends: interrupt the data, if it then still prepares a batch, with a signal that ends nothing.

        The batch is one of those that are held ahead, and the data may wait for that of a process that has ended.
        """
        if self.handlers:
            timer = threading.Timer(PATIENCE, self.wake)
            timer.daemon = True
            timer.start()

    def wake(self) -> None:
        with self.ending_here:  # as long as it is held, this loop handles signals
            if self.ahead.may_interrupt and not self.has_left:
                self.wakes = True
                signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)

    def when_stuck(self, event: Ending) -> None:
        """Another process has failed, and this one may wait for it: do what is left, in a thread."""
        if event.is_own and self.error is not None:  # the user's code may have caught that of a loop inside this one
            return
        self.callbacks_are_over |= event.reason == CALLBACK
        self.has_heard = True
        is_lost, place, deadline = event.kind == "lost", self.place, time.monotonic() + PATIENCE

        def may_be_stuck() -> bool:
            return not self.has_left and (is_lost or (place is not None and self.place is place))

        while time.monotonic() < deadline and may_be_stuck():
            time.sleep(0.02)
        with self.ending_here:
            if not may_be_stuck() or not (is_lost or self.agreement.last == self.done):
                return
            error: BaseException | None = event.raised
            if not is_lost:
                self.is_taken_over = self.callbacks_are_over = True
                self.error = None
                try:
                    self.undo_evaluation()
                    self.before = None
                    self.finish()
                except Exception as found:
                    error = found
            assert error is not None
            self.agreement.leave()
            outer = self.outer(signal.SIGTERM)
            if outer is None or not (outer.hears_soon() or outer.is_ended_by(error)):
                end_at_once(all_report(error))

    def hears_soon(self) -> bool:
        """Wait for the error with which a loop inside this one has ended elsewhere: then this one saves and ends."""
        deadline = time.monotonic() + 2 * PATIENCE
        while not self.has_heard and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.has_heard

    def is_ended_by(self, error: BaseException) -> bool:
        """End by the error of a loop inside this one, of which the other processes say nothing, if all can save.

        They have caught it, or gone on, but no further than to the end of the evaluation in which this one is stuck.
        """
        if self.before is None:
            return False
        self.agreement.call(error_ending(error))
        self.agreement.worst("failed", f"after/{self.done}")
        self.agreement.end_after(self.done)
        return True

    @contextlib.contextmanager
    def running(self, steps: int, show: bool) -> Iterator[None]:
        """Restore the newest checkpoint, handle signals, show progress, and close the loggers at the end."""
        self.steps = steps
        if not self.is_alone:
            self.agreement = MultiProcess(self.when_stuck, self.save_before, self.wake_later)
        try:
            if not self.is_alone and self.checkpoints is not None:
                warn_of_other_copies(self.objects)
            self.resume()
            self.ahead = Ahead(self.data, self.agreement.ahead, self.done, self.children)
            run_on_all(self.check_savable)
        except BaseException as error:
            self.end_apart(error)
            self.has_left = True
            raise
        self.agreement.begin_after(self.done)
        self.lines = Lines(steps, self.done)
        shows = show and jax.process_index() == 0
        self.pace = Pace(self.agreement.ahead)
        if self.stopped is not None:
            self.stop(self.stopped)
        with contextlib.ExitStack() as held:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    self.handlers[number] = signal.signal(number, self.on_signal)
                    held.callback(signal.signal, number, self.handlers[number])
            held.enter_context(self.children.held_back())
            if (profile := self.profile) is not None:
                held.callback(lambda: profile.end_with_run(self.last))
            for logger in self.loggers:
                held.callback(self.close, logger)
            self.display = held.enter_context(progress(steps, done=self.done)) if shows else Progress()
            held.enter_context(self.left())
            yield

    def check_savable(self) -> None:
        """Raise now what would be found at the first save, which may be the one at the end."""
        if self.checkpoints is not None:
            described(self.with_data(self.ahead), stored_states([states_of(self.callbacks)]))

    def resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        manifest = None if self.checkpoints is None else self.checkpoints.restore(self.with_data(self.data))
        if manifest is not None:
            self.done = self.saved = manifest.step or 0
            self.values = {name: value for name, value in manifest.metrics.items() if type(value) in (int, float)}
            self.values |= restored_numbers(manifest.extra.get(VALUES, {}))
            was_evaluated = any(name.startswith(EVALUATION) for name in self.values)
            self.evaluated_at = manifest.extra.get(EVALUATED, self.done if was_evaluated else 0)
            self.noted = self.done
            self.earlier = own_states(manifest.extra)
            restore_states(self.callbacks, self.earlier)
            own = [*filter(None, (getattr(each, "stopped", None) for each in self.callbacks))]
            self.stopped = next(itertools.chain(*self.agreement.gathered(own)), None)  # by one of any process
        self.first = self.done + 1

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Tell the other processes how this one has left the loop."""
        try:
            yield
        except BaseException as error:
            if not self.has_met:
                self.end_apart(error)
            raise
        finally:
            self.ahead.go_back()
            if self.has_met:
                self.agreement.close()
            with self.ending_here:
                self.has_left = True

    def end_apart(self, error: BaseException) -> None:
        """End without the others: a step has raised, here or in another process."""
        if not self.agreement.ahead:
            return
        self.error = self.error or error
        if is_loss(error):
            time.sleep(PATIENCE + 1)  # the thread knows why, or will
        ending = self.agreement.ending
        if ending is not None and ending.kind == "lost":
            all_report(error)
            self.agreement.leave()
        else:
            with contextlib.suppress(Exception):
                self.wait()
            if isinstance(error, SystemExit):
                end_at_exit(error)
            self.agreement.lose(error if is_loss(error) else all_report(error))

    def close(self, logger: Logger) -> None:
        with contextlib.suppress(Exception):
            logger.close()
