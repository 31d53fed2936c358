"""A run: what one call of ``fit`` does, from the checkpoint that it resumes from to the last one that it saves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ...checkpoint.checkpoints import Checkpoints
from ...checkpoint.orbax import described
from ...checkpoint.positions import has_position
from ...core.variables.variable_kinds import Param
from ...errors import CheckpointError, CheckpointWarning, NonFiniteError, ProcessError
from ...inspect.observe.nonfinite import has_nan
from ...partitioning.processes.all_processes import run_on_all
from ...partitioning.processes.connect import all_report, end_at_exit, end_at_once, is_loss
from ...partitioning.processes.launched import saving
from ...util.notices import warn
from ...util.words import first_few
from .ahead import NOTHING, Ahead, Pace
from .batches import limited
from .before_evaluation import BeforeEvaluation
from .callbacks import CallbackInfo, Callbacks, EarlyStop, states_of, stored_states
from .children import Children
from .fit_arguments import DATA, arguments_of, check_object_names, iterator_of
from .loggers import Logger
from .processes.agreement import PATIENCE, Ending, MultiProcess, SingleProcess, error_ending
from .processes.copies import warn_of_other_copies
from .progress import Progress
from .reports import Reports
from .run_states import Event, RunState
from .saves import EVALUATION, Saves, restored_metrics, stored_metrics
from .signals import Signals
from .step_results import check_loss, not_finite, numbers_of
from .timed_data import timed

BEHIND = 2  # the number of pending metrics at which the loop waits for the oldest
CALLBACK, ERROR = "callback", "error"  # reasons of an end by an error


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

        Exit with it, so that a scheduler restarts the program: 0 would mean that it has finished.
        """
        number = getattr(signal, self.reason, None)
        return 128 + number if isinstance(number, signal.Signals) else 0


class Run:
    """One call of ``fit``.

    Attributes:
        done: the number of completed steps; ``last_result`` is the result of the last one in this call.
        before: what is saved instead of the objects during an evaluation.
        error: the first error of this process.
        stopped: why a run that a callback has ended before does not go on.
        place: where the user's code may wait for another process, outside of a step.
        has_heard_error: whether this process knows of an error of another one.
    """

    steps: int  # to do, including those before a resumed checkpoint
    ahead: Ahead
    pace: Pace

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
        epochs: int | None = None,
    ) -> None:
        self.is_alone = jax.process_count() == 1
        self.step, self.objects, self.evaluate = step, objects, evaluate
        awaited = {f"callbacks[{n}]": each.name for n, each in enumerate(callbacks) if isinstance(each, EarlyStop)}
        if checkpoints is not None and checkpoints.keep.metric is not None:
            awaited["checkpoints.keep.metric"] = checkpoints.keep.metric
        self.reports = Reports(loggers, awaited, evaluates=evaluate is not None)
        self.callbacks, self.saves = Callbacks(callbacks), Saves(checkpoints)
        self.arguments = arguments_of(step, objects)
        check_object_names(objects)
        has_epochs = epochs is not None
        batches = iterator_of(data, needs_position=checkpoints is not None, counts_epochs=has_epochs)
        self.data: Any = timed(batches, data_timeout)
        self.limit = limited(batches, epochs) if has_epochs else contextlib.nullcontext()
        self.state, self.signals, self.children = RunState(), Signals(self), Children()
        self.agreement: SingleProcess | MultiProcess = SingleProcess()
        self.done = 0
        self.last_result: Any = None
        self.evaluated_at = self.tried_at = 0  # the steps of the last evaluation, and of the last that was begun
        self.before: BeforeEvaluation | None = None
        self.error: BaseException | None = None
        self.stopped: str | None = None
        self.place: object | None = None
        self.has_heard_error = threading.Event()

    def train(
        self, steps: int, save_every: int | None, evaluate_every: int | None, log_every: int | None, show: bool
    ) -> FitResult:
        """Resume, do the steps that are left, evaluate and save between them, and end as the processes agree."""
        with self.running(steps, show) as display:
            if self.done and self.done <= steps and self.stopped is None:
                # The run may have ended before its evaluation at this step, whose metrics are those of its checkpoint.
                self.evaluate_and_save(evaluate_every, save_every if _is_due(self.done, evaluate_every) else None)
            act, arguments = self.step, self.arguments
            while (batch := self.next_batch(self.done + 1)) is not NOTHING:
                number = self.done + 1
                returned = self.last_result = act(*arguments, batch)
                if not self.is_alone:
                    self.pace.keep(returned)
                self.done = number
                is_logged = number == steps or _is_due(number, log_every)
                if is_logged or self.reports.pending:
                    self.end_run_on_error(self.report_step, is_logged)
                self.evaluate_and_save(evaluate_every, save_every if number < steps else None)
                display.advance()
            result = self.finish()
        if not result.exit_status:
            self.signals.pass_on_late()
        return result

    def evaluate_and_save(self, evaluate_every: int | None, save_every: int | None) -> None:
        """Evaluate and save, if this step is one for it."""
        if _is_due(self.done, evaluate_every):
            self.end_run_on_error(self.evaluate_once)
        if _is_due(self.done, save_every) and not self.state.is_stopped:
            self.end_run_on_error(self.save)

    @contextlib.contextmanager
    def running(self, steps: int, show: bool) -> Iterator[Progress]:
        """Restore the newest checkpoint, handle signals, show progress, and close the loggers at the end."""
        self.steps = steps
        if not self.is_alone:
            self.agreement = MultiProcess(self.when_stuck, self.save_before, self.signals.wake_later)
        try:
            if not self.is_alone and self.saves.checkpoints is not None:
                warn_of_other_copies(self.objects)
            self.resume()
            self.ahead = Ahead(self.data, self.agreement.ahead, self.done, self.children)
            run_on_all(self.check_savable)
        except BaseException as error:
            self.end_apart(error)
            self.state.move(Event.LEAVE)
            raise
        self.agreement.begin_after(self.done)
        self.pace = Pace(self.agreement.ahead)
        if self.stopped is not None:
            self.stop(self.stopped)
        with contextlib.ExitStack() as held:
            held.enter_context(self.limit)
            held.enter_context(self.signals.handled())
            held.enter_context(self.children.held_back())
            display = held.enter_context(self.reports.shown(steps, self.done, show))
            if self.done and self.saves.checkpoints is not None:
                display.say(f"resumed from step {self.done} in {self.saves.checkpoints.folder}")
            held.enter_context(self.leaving())
            yield display

    def resume(self) -> None:
        """Restore the newest checkpoint, if there is one."""
        manifest = self.saves.restore(self.with_data(self.data))
        if manifest is not None:
            self.done = self.reports.noted = self.saves.step
            self.reports.values, self.evaluated_at = restored_metrics(manifest)
            self.callbacks.restore(manifest.extra)
            stopped = self.agreement.gathered(self.callbacks.stopped)  # by one of any process
            self.stopped = next(itertools.chain(*stopped), None)
        self.first = self.done + 1  # the number of the first step of this call

    def check_savable(self) -> None:
        """Raise now what would be found at the first save, which may be the one at the end."""
        if self.saves.checkpoints is not None:
            described(self.with_data(self.ahead), stored_states([states_of(self.callbacks.all)]))

    # Steps ------------------------------------------------------------------------------------------------------------

    def next_batch(self, number: int) -> Any:
        """The batch of this step, or ``NOTHING`` if it is not done."""
        is_usual = self.is_alone and self.signals.received is None and self.agreement.ending is None
        if is_usual and number <= self.steps:
            batch = self.ahead.fetch()
            if batch is not NOTHING:
                return batch
            self.pass_on_end()
        return self.ahead.take() if self.begins(number) else NOTHING

    def begins(self, number: int) -> bool:
        """Whether all processes do this step; then its batch has been read."""
        self.pass_on_signal()
        if number > self.steps:
            self.agreement.call(Ending("steps", "steps", last=self.steps))
        if self.state.is_stopped:  # all know, so nothing is left to agree on but the last step
            return self.agreement.begins(number, self.ahead.last, True)
        goes_on = self.agreement.ending is None and not self.signals.is_passed_on
        if goes_on and self.ahead.ended is None and not self.is_alone:
            self.ahead.fill(number, self.steps)
            self.pass_on_end()
        self.pass_on_signal()  # one that came while the data was waited for
        is_over = self.ahead.ended is not None or self.signals.is_passed_on
        if number == self.first:
            self.agreement.await_first_batches(is_over)
        if not self.is_alone and number <= self.steps and not self.pace.wait(self.objects):
            self.agreement.keep_pace(number)
        is_over = is_over or self.signals.is_passed_on
        if not self.agreement.begins(number, self.ahead.last, is_over):
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
        """Inform the other processes of a signal."""
        self.signals.pass_on(lambda name: self.agreement.call(Ending("signal", name)))

    def pass_on_end(self) -> None:
        """Inform the other processes of the end of the data."""
        if isinstance(self.ahead.ended, StopIteration):
            self.agreement.call(Ending(DATA, DATA, last=self.ahead.last))
        elif self.ahead.ended is not None:
            self.fail(self.ahead.ended, last=self.ahead.last)

    # The end ----------------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End after the current step."""
        self.agreement.call(Ending("callback", reason))

    def end_run_on_error(self, act: Callable[..., object], *arguments: Any) -> None:
        """Act; an error ends the run at a step that all processes complete."""
        try:
            act(*arguments)
        except BaseException as error:  # also SystemExit
            if isinstance(error, KeyboardInterrupt) and self.signals.received is not None:  # a second signal
                raise
            self.fail(error)

    def fail(self, error: BaseException, last: int = 0) -> None:
        """End the run with this error, after the step ``last`` or as soon as possible."""
        if self.error is None or (isinstance(self.error, SystemExit) and not self.error.code):  # not a success
            self.error = error
        elif error is not self.error and isinstance(error, NonFiniteError | CheckpointError):
            warn(CheckpointWarning, str(error))  # the run ends with the first one
        self.agreement.call(error_ending(error, reason=CALLBACK if self.callbacks.are_over else ERROR, last=last))

    def finish(self) -> FitResult:
        """What is left to do after the last step. All processes have done the same steps."""
        ending = self.agreement.ending
        assert ending is not None
        if ending.kind == "lost":
            raise ending.raised or AssertionError("an ending of this kind has an error")
        was_cut_short = ending.kind == "signal" and self.done < self.steps
        if was_cut_short:
            self.signals.cut_short()
        is_whole = not was_cut_short and ending.kind != "error"
        if is_whole and self.last_result is not None and self.reports.noted < self.done:
            self.reports.add(self.done, self.last_result)
        while self.reports.pending:  # also after an error: callbacks of other processes may wait for those of this one
            self.end_run_on_error(self.flush_pending_metrics)
        # A later phase of the run may have done more, or this one may have ended before.
        may_evaluate = is_whole and not self.state.is_taken_over and self.done <= self.steps and self.stopped is None
        if self.evaluate is not None and may_evaluate:
            self.end_run_on_error(self.evaluate_once)
        self.end_run_on_error(self.save)
        self.end_run_on_error(self.saves.wait)
        error = self.agreement.first_error(self.error)
        self.state.move(Event.AGREE)
        if isinstance(error, SystemExit) and not self.is_alone:
            end_at_exit(error)
        if error is not None:
            raise all_report(error)
        return FitResult(self.done, self.reports.values, ending.reason)

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Tell the other processes how this one leaves the loop."""
        try:
            yield
        except BaseException as error:
            if not self.state.has_agreed:
                self.end_apart(error)
            raise
        finally:
            self.ahead.go_back()
            if self.state.has_agreed:
                self.agreement.close()
            self.state.move(Event.LEAVE)

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
                self.saves.wait()
            if isinstance(error, SystemExit):
                end_at_exit(error)
            self.agreement.lose(error if is_loss(error) else all_report(error))

    # Metrics ----------------------------------------------------------------------------------------------------------

    def report_step(self, is_logged: bool) -> None:
        """Report the metrics that are computed after a step.

        Args:
            is_logged: whether those of this step are reported too.
        """
        if is_logged:
            self.reports.add(self.done, self.last_result)
        if self.is_alone:
            self.flush_pending_metrics(at_least=len(self.reports.pending) - BEHIND if is_logged else 0)
        else:  # at the same step in all processes: callbacks may use the devices of all
            self.flush_pending_metrics(at_least=sum(step <= self.done - BEHIND for step, *_ in self.reports.pending))

    def flush_pending_metrics(self, at_least: int | None = None) -> None:
        """Wait for the first ``at_least`` pending metrics, or all, and report them.

        Alone, a process reports all that are computed.
        """
        at_least = len(self.reports.pending) if at_least is None else at_least
        for number, values, when in self.reports.computed(at_least, more=self.is_alone):
            self.report_metrics(number, values, when)
            self.reports.check_awaited(of_evaluation=False)
            with self.saves.nothing_after():
                check_loss(number, values, self.objects)

    def report_metrics(self, number: int, values: dict[str, float], when: float) -> None:
        """Pass metrics to the loggers and callbacks."""
        if not values:
            return
        self.reports.values |= values
        # Callbacks of this step in other processes may wait for those here.
        self.end_run_on_error(self.reports.write, number, values)
        if not self.callbacks.are_over:
            info = CallbackInfo(number, values, {**self.objects}, self.stop)
            with self.waiting_for_others(f"callbacks/{number}"):
                self.callbacks.call(info, self.objects, is_alone=self.is_alone)
        self.reports.show(number, values, when)

    # Evaluations ------------------------------------------------------------------------------------------------------

    @property
    def is_evaluating(self) -> bool:
        """Whether the state from before an evaluation is kept."""
        return self.before is not None

    def evaluate_once(self) -> None:
        """Evaluate after this step, unless that is done, and report the metrics."""
        if self.done in (self.evaluated_at, self.tried_at):
            return
        self.tried_at = self.done
        self.end_run_on_error(self.flush_pending_metrics)
        with self.waiting_for_others(f"evaluation/{self.done}"):
            self.state.move(Event.EVALUATE)
            found = None
            try:
                self.keep_before(BeforeEvaluation(self.objects))
                found = self.evaluated()
            finally:
                self.keep_before(None)
                self.state.move(Event.EVALUATION_FAILED if found is None else Event.EVALUATION_DONE)
            if found is not None:
                self.evaluated_at = self.done
                self.ahead.look_again()
                self.saves.evaluated |= found
                self.report_metrics(self.done, found, time.perf_counter())
                self.reports.check_awaited(of_evaluation=True)

    def evaluated(self) -> dict[str, float] | None:
        """The metrics of an evaluation; ``None`` if it failed or was cut short: the resumed run evaluates."""
        assert self.evaluate is not None
        signals = self.signals
        signals.is_cut_short = False
        own = "failed" if self.error else "signal" if signals.received or signals.is_known else ""
        word = self.agreement.worst(own, f"before/{self.done}")
        if word == "signal":
            before = self.before
            self.keep_before(None)
            self.save()  # whoever sent the signal may not wait for the evaluation
            self.saves.wait()
            self.keep_before(before)
        if "failed" in (own, word) or self.has_heard_error.is_set():  # another process would be waited for
            self.agreement.worst("failed", f"after/{self.done}")
            self.agreement.end_after(self.done)
            return None
        try:
            found = {f"{EVALUATION}{name}": value for name, value in numbers_of(self.evaluate()).items()}
        except BaseException as error:
            if not signals.is_cut_short or not isinstance(error, Exception) or is_loss(error):
                self.undo_evaluation()
                with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is gone
                    self.agreement.worst("failed", f"after/{self.done}")
                raise
            found = {}  # it may want the numbers of a loop that was ended before it had any
        word = self.agreement.worst("cut short" if signals.is_cut_short else "", f"after/{self.done}")
        if word:
            self.undo_evaluation(must=word == "failed")
            self.agreement.end_after(self.done)
            return None
        return found

    def keep_before(self, before: BeforeEvaluation | None) -> None:
        """Keep the state from before an evaluation, until it is over, and until a thread has saved it."""
        with self.state.lock:
            self.before = before

    def undo_evaluation(self, *, must: bool = True) -> None:
        """Give the objects their values from before an evaluation that failed.

        Args:
            must: whether the state is not saved if a parameter has been donated.
        """
        before = self.before
        if before is None:
            return
        donated = before.donated_parameters() if must and self.saves.checkpoints is not None else []
        if donated:
            self.saves.error = self.saves.error or CheckpointError(
                f"the state after step {self.done} is not saved: the evaluation that failed has donated a part of it",
                at=first_few(donated, 5),
                found="deleted arrays, and what the evaluation has made of them",
                expected="arrays to go back to",
                do="evaluate plait.clone(model, arrays=True), or without donation; resume from the newest checkpoint",
            )
        before.put_back(self.objects)

    def hear_signal(self) -> None:
        """A signal has arrived during an evaluation. This runs in a thread."""
        if self.is_alone:
            self.save_before()
        else:
            self.pass_on_signal()  # then a thread of every process saves

    def save_before(self) -> None:
        """Save the state from before the running evaluation: the sender of a signal may not wait for its end."""
        with self.state.lock:
            self.signals.is_known = True
            can = self.before is not None and not self.before.is_donated
            if not self.agreement.worst("" if can else "no", "signal"):  # all can
                with self.saves.again_if_failed():  # when the evaluation is over
                    self.save()
                    self.saves.wait()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def with_data(self, data: Any) -> dict[str, Any]:
        """What is saved and restored."""
        objects = self.objects if self.before is None else self.before.objects
        return {**objects, DATA: data} if has_position(self.data) else {**objects}

    def save(self) -> None:
        """Save, if there are new steps or evaluations, and the loss and the parameters are finite."""
        if self.saves.checkpoints is None:
            return
        self.end_run_on_error(self.flush_pending_metrics)  # what fails in it fails before the processes meet
        if not self.agreement.worst("new" if self.saves.step != self.done or self.saves.evaluated else ""):
            return
        # All are here, so ``plait launch`` may wait: an earlier save may still have to end.
        with saving(), self.saves.nothing_after():
            self.end_run_on_error(self.saves.checkpoints.wait)  # one that failed ends the run; this one may go well
            run_on_all(self.check_whole)  # what may fail in one process alone, before they save together
            states = stored_states(self.agreement.gathered(self.callbacks.states(self.end_run_on_error)))
            values = self.reports.values
            metrics = {name: value for name, value in values.items() if not name.startswith(EVALUATION)}
            self.saves.save(
                self.done,
                self.with_data(self.ahead),
                metrics | numbers_of(self.last_result),
                stored_metrics(values, self.evaluated_at) | states,
            )

    def check_whole(self) -> None:
        """Raise if the state may not be saved."""
        if self.saves.error is not None:
            raise self.saves.error
        check_loss(self.done, numbers_of(self.last_result), self.objects)
        if self.has_nan():  # the loss was computed before the last update
            raise not_finite(f"parameters are NaN after step {self.done}", self.objects)

    def has_nan(self) -> bool:
        """Whether a parameter is NaN."""
        ending = self.agreement.ending
        may_wait = ending is not None and ending.error is not None  # a device, for another process
        on_host = may_wait or self.state.is_taken_over or self.error is not None or self.is_evaluating
        return has_nan(self.with_data(None), Param, on_host=on_host)

    # Other processes --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def waiting_for_others(self, name: str) -> Iterator[None]:
        """Mark code of the user that may wait for a process that has failed: then ``when_stuck`` ends this one."""
        outer, self.place = self.place, self.place or object()
        try:
            with self.agreement.in_users_code(name):
                yield
        finally:
            self.place = outer
            with self.state.lock:  # held by the thread that ends the process
                assert not self.state.is_taken_over

    def when_stuck(self, event: Ending) -> None:
        """Another process has failed, and this one may wait for it: do what is left, in a thread."""
        if event.is_own and self.error is not None:  # the user's code may have caught that of a loop inside this one
            return
        self.callbacks.are_over |= event.reason == CALLBACK
        self.has_heard_error.set()
        is_lost, place, deadline = event.kind == "lost", self.place, time.monotonic() + PATIENCE

        def may_be_stuck() -> bool:
            return not self.state.has_left and (is_lost or (place is not None and self.place is place))

        while time.monotonic() < deadline and may_be_stuck():
            time.sleep(0.02)
        with self.state.lock:
            if not may_be_stuck() or not (is_lost or self.agreement.last == self.done):
                return
            error: BaseException | None = event.raised
            if not is_lost:
                self.state.move(Event.TAKE_OVER)
                self.callbacks.are_over = True
                self.error = None
                try:
                    self.undo_evaluation()
                    self.before = None
                    self.finish()
                except Exception as found:
                    error = found
            assert error is not None
            self.agreement.leave()
            outer = self.signals.outer()
            if outer is None or not (outer.run.hears_soon() or outer.run.is_ended_by(error)):
                end_at_once(all_report(error))

    def hears_soon(self) -> bool:
        """Wait for the error with which a loop inside this one has ended elsewhere: then this one saves and ends."""
        return self.has_heard_error.wait(2 * PATIENCE)

    def is_ended_by(self, error: BaseException) -> bool:
        """End by the error of a loop inside this one, of which the other processes say nothing, if all can save.

        They have caught it, or gone on, but no further than to the end of the evaluation in which this one is stuck.
        """
        if not self.is_evaluating:
            return False
        self.agreement.call(error_ending(error))
        self.agreement.worst("failed", f"after/{self.done}")
        self.agreement.end_after(self.done)
        return True


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
