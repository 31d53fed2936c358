"""``fit``: what it calls, what it writes, and how it goes on and ends."""

import contextlib
import errno
import functools
import itertools
import json
import math
import os
import re
import signal
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.checkpoint import Checkpoints, Keep, orbax, restore
from plait.core.nodes.nodes import visit
from plait.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CheckpointWarning,
    DataError,
    LoggerWarning,
    NonFiniteError,
    ProcessError,
)
from plait.training import Batches, EarlyStop, JsonLines, fit, prefetch
from plait.training.loop import reports, run as run_of_fit
from plait.training.loop.ahead import Ahead
from plait.training.loop.processes.agreement import SingleProcess
from tests.compare import assert_same, readable
from tests.sampling import slow_but

pytestmark = pytest.mark.usefixtures("users_promotion")  # Optax multiplies numbers of several dtypes


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.first = plait.Linear(3, 8, rngs=rngs)
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.dropout = plait.Dropout(0.5, rngs=rngs)
        self.last = plait.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(self.norm(self.first(x))))


def start():
    model = Net()
    return {"model": model, "optimizer": plait.Optimizer(model, optax.adam(1e-2), wrt=plait.Param)}


@plait.jit(donate=True)
def train(model, optimizer, batch):
    loss, grads = plait.value_and_grad(lambda model: (model(batch) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


def source(epoch):
    return np.random.default_rng(epoch).normal(size=(5, 4, 3)).astype(np.float32)


def values(objects):
    state = plait.to_pure_dict(plait.state(list(objects.values())))
    return jax.tree.map(lambda leaf: np.array(readable(leaf)), state)


@pytest.mark.slow
def test_it_is_the_loop_that_one_would_write():
    objects, expected = start(), start()
    fitted = fit(train, objects, source, steps=12, show=False)
    data = Batches(source)
    for _ in range(12):
        loss = train(*expected.values(), next(data))
    assert_same(values(objects), values(expected))
    assert fitted.step == 12
    assert fitted.reason == "steps"
    assert fitted.values == {"loss": float(loss)}


def test_a_loss_that_is_not_read_yet_is_looked_at_before_a_save(tmp_path, monkeypatch):
    """That of step 2 is still computed at step 3, whose own loss is finite: nothing may be saved after it."""
    monkeypatch.setattr(reports, "is_there", lambda returned: False)
    losses = iter([1.0, float("nan"), 1.0, 1.0])
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(NonFiniteError, match="loss is nan at step 2"):
            fit(
                lambda *_: next(losses), start(), source, steps=4, checkpoints=checkpoints, log_every=2, save_every=3,
                show=False,
            )  # fmt: skip
        assert checkpoints.all() == []


@pytest.mark.parametrize("stops", slow_but([[4, 4, 8]], [[7], [1, 2, 11], [4, 4, 8]]), ids=str)
def test_a_run_that_was_interrupted_is_the_run_that_was_not(tmp_path, stops):
    whole = start()
    expected = fit(train, whole, source, steps=13, log_every=1, show=False)
    for stop in (*stops, 13):
        objects = start()
        with Checkpoints(tmp_path / "checkpoints", keep=Keep(last=2)) as checkpoints:
            fitted = fit(
                train,
                objects,
                source,
                steps=stop,
                checkpoints=checkpoints,
                save_every=3,
                log_every=1,
                loggers=[JsonLines(tmp_path / "log.jsonl")],
                show=False,
            )
        assert fitted.step == stop
    assert_same(values(objects), values(whole))
    assert fitted.values == expected.values
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(1, 14)]


def test_lines_of_steps_that_are_done_again_are_replaced(tmp_path):
    log = tmp_path / "log.jsonl"
    for first in (1, 3):
        logger = JsonLines(log)
        for step in range(first, first + 4):
            logger.write(step, {"loss": first / 10, "odd": float("nan")})
        logger.close()
        log.write_text(log.read_text() + '{"step": 9, "lo')
    rows = [json.loads(line) for line in log.read_text().splitlines()[:-1]]
    assert [(row["step"], row["loss"], row["odd"]) for row in rows] == [
        *[(step, 0.1, "nan") for step in (1, 2)],
        *[(step, 0.3, "nan") for step in (3, 4, 5, 6)],
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_step_with_a_checkpoint(tmp_path, number):
    objects = start()

    def step(model, optimizer, batch):
        if batch[1]:
            os.kill(os.getpid(), number)
        return train(model, optimizer, batch[0])

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Checkpoints(tmp_path) as checkpoints:
        data = [(batch, i == 3) for i, batch in enumerate(source(0))]
        fitted = fit(step, objects, data, steps=100, checkpoints=checkpoints, show=False)
        assert (fitted.step, fitted.reason) == (4, number.name)
        assert [saved.step for saved in checkpoints.all()] == [4]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_second_signal_interrupts_at_once():
    def step(model, batch):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt) as caught:
        fit(step, {"model": plait.Param(1.0)}, [1], steps=10, show=False)
    assert caught.value.__suppress_context__  # the time limit of a request to another process, of which a user saw most


@pytest.mark.parametrize("inside", [False, True])
def test_a_signal_after_the_last_step_does_what_it_does_outside(tmp_path, inside):
    """It was lost: what followed went on until it was killed. Inside another loop, it is that one's already."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))

    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": 1.0}

    def train_to_the_end(*_):
        with Checkpoints(tmp_path) as checkpoints:
            fitted = fit(train, start(), source, steps=2, checkpoints=checkpoints, evaluate=evaluate, show=False)
            assert [saved.step for saved in checkpoints.all()] == [2]
        assert (fitted.step, fitted.reason) == (2, "steps")
        return 0.0

    try:
        if inside:
            outer = fit(train_to_the_end, {"p": plait.Param(1.0)}, [1.0], steps=9, show=False)
            assert (outer.step, outer.reason) == (1, "SIGTERM")
        else:
            train_to_the_end()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ([] if inside else ["SIGTERM"])


def test_a_signal_while_a_logger_is_closed_waits_for_that():
    """It ended the process in the middle of what was left to write."""
    events = []

    class Slow:
        def write(self, step, values):
            pass

        def close(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            events.append("closed")

    before = signal.signal(signal.SIGTERM, lambda *_: events.append("SIGTERM"))
    try:
        fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=2, loggers=[Slow()], show=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert events == ["closed", "SIGTERM"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:os.fork", "ignore:This process")
def test_a_signal_to_a_forked_child_does_what_it_does_outside():
    """Workers of the data or the evaluation could not be terminated, and the program waited for them at its end."""
    ended = []
    runs, tells = os.pipe()

    def evaluate():
        child = os.fork()
        if child == 0:
            os.write(tells, b".")
            time.sleep(20)
            os._exit(0)
        os.read(runs, 1)
        os.kill(child, signal.SIGTERM)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return {}

    fitted = fit(lambda p, x: None, {"p": plait.Param(1.0)}, [1], steps=1, evaluate=evaluate, show=False)
    assert (fitted.reason, ended) == ("steps", [-signal.SIGTERM])


def test_a_signal_is_passed_on_once(monkeypatch):
    """Each time is a message to all processes of a run."""
    called, call = [], SingleProcess.call
    monkeypatch.setattr(SingleProcess, "call", lambda self, ending: called.append(ending.reason) or call(self, ending))
    fit(lambda p, x: os.kill(os.getpid(), signal.SIGTERM), {"p": plait.Param(1.0)}, [1], steps=2, show=False)
    assert called == ["SIGTERM"]


def broken(epoch):
    yield from source(0)[:3]
    raise OSError("the disk is gone")


def slow(epoch):
    yield from source(0)[:3]
    time.sleep(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "error"), slow_but([(broken, OSError)], [(broken, OSError), (slow, DataError)]), ids=["raises", "hangs"]
)
def test_when_the_data_fails_what_was_done_is_kept(tmp_path, data, error):
    objects = start()
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(error):
            fit(train, objects, data, steps=9, checkpoints=checkpoints, data_timeout=2.0, show=False)
        again = start()
        fitted = fit(train, again, source, steps=5, checkpoints=checkpoints, show=False)
        assert fitted.step == 5
    expected = start()
    fit(train, expected, source, steps=5, show=False)
    assert_same(values(again), values(expected))


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *((where, SystemExit) for where in ("data", "callback", "evaluation")),
        *((where, KeyboardInterrupt) for where in ("data", "callback")),
    ],
)
def test_a_program_that_exits_inside_the_loop_keeps_what_was_done(tmp_path, where, error):
    def exits(at, *_):
        if where == at:
            raise error(3)

    def data(epoch):
        yield from source(0)[:3]
        exits("data")

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(error, match="3"):
            fit(
                train, start(), data, steps=3 + (where == "data"), checkpoints=checkpoints, show=False,
                callbacks=[lambda info: exits("callback")], evaluate=lambda: exits("evaluation") or {"loss": 1.0},
            )  # fmt: skip
        assert [saved.step for saved in checkpoints.all()] == [3]


def test_when_the_data_ends_so_does_training(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(train, start(), Batches(source, epochs=2), steps=100, checkpoints=checkpoints, show=False)
        assert (fitted.step, fitted.reason) == (10, "data")
        assert [saved.step for saved in checkpoints.all()] == [10]


def test_a_logger_that_fails_is_given_up_and_training_goes_on():
    class Broken:
        closed = False

        def write(self, step, values):
            raise OSError("full")

        def close(self):
            self.closed = True

    class Rows(list):
        def write(self, step, values):
            self.append((step, *values))

        def close(self):
            self.append("closed")

    logger, rows = Broken(), Rows()
    with pytest.warns(LoggerWarning, match="Broken.*full") as caught:
        fitted = fit(train, start(), source, steps=6, log_every=2, loggers=[logger, rows], show=False)
    assert len(caught) == 1
    assert fitted.step == 6
    assert logger.closed
    assert rows == [(2, "loss"), (4, "loss"), (6, "loss"), "closed"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_the_variables_and_is_not_saved(tmp_path):
    objects = start()

    def step(model, optimizer, batch):
        loss = train(model, optimizer, batch)
        if optimizer.step.value == 5:
            model.first.kernel.value = model.first.kernel.value * jnp.nan
            return loss * jnp.nan
        return loss

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(NonFiniteError, match="loss is nan at step 5") as caught:
            fit(step, objects, source, steps=9, checkpoints=checkpoints, save_every=1, log_every=4, show=False)
        assert caught.value.parts["at"] == "model.first.kernel"
        assert [saved.step for saved in checkpoints.all()] == [2, 3, 4]


def test_what_the_error_advises_names_the_layer(tmp_path):
    """In a function that JAX has not compiled yet, as in a new process; its buffers are donated."""

    class Root(plait.Module):
        def __call__(self, x):
            return jnp.sqrt(x - 10)

    model = plait.Sequential(plait.Linear(3, 3, rngs=plait.Rngs(0)), Root())
    objects = {"model": model, "optimizer": plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)}
    with pytest.raises(NonFiniteError, match=r"layers\[1\] \(a Root\)"), plait.debug_nans():
        fit(plait.jit(train.__wrapped__, donate=True), objects, source, steps=2, show=False)


@pytest.mark.slow
def test_the_checkpoint_comes_before_an_evaluation_when_a_signal_ends_the_run(tmp_path):
    """Whoever sent it may not wait; the evaluation at the end belongs to a run that is done."""
    saved = []

    def step(model, optimizer, batch):
        if int(optimizer.step.value) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(model, optimizer, batch)

    with Checkpoints(tmp_path) as checkpoints:

        def evaluate():
            saved.append([each.step for each in checkpoints.all()])
            return {"loss": 1.0}

        options = {"checkpoints": checkpoints, "evaluate": evaluate, "show": False}
        assert fit(step, start(), source, steps=9, **options).reason == "SIGTERM"
        assert saved == []
        assert fit(step, start(), source, steps=4, **options).values["eval/loss"] == 1.0
    (tmp_path / "other").mkdir()
    with Checkpoints(tmp_path / "other") as checkpoints:
        fitted = fit(step, start(), source, steps=9, **options | {"checkpoints": checkpoints, "evaluate_every": 4})
        assert (fitted.step, fitted.reason, fitted.values["eval/loss"]) == (4, "SIGTERM", 1.0)
        assert checkpoints.all()[-1].metrics["eval/loss"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("is_donated", [False, True])
def test_the_state_is_saved_during_an_evaluation_when_a_signal_comes(tmp_path, is_donated):
    """Whoever sent it kills what is not done in time. What the evaluation has changed is not saved."""
    objects = {"p": plait.Param(1.0), "count": plait.Variable(jnp.zeros(()))}

    def evaluate():
        objects["p"].set_value(7.0)
        if is_donated:  # then it is saved when the evaluation is over
            plait.jit(lambda count: count.set_value(count[...] + 1), donate=True)(objects["count"])
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + (1 if is_donated else 30)
        while not (tmp_path / "step-00000002").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        found = plait.Param(0.0)
        if not is_donated:
            restore(tmp_path / "step-00000002", {"p": found}, partial=True)
        objects["p"].set_value(1.0)
        return {"p": found.get_value()}

    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(
            lambda p, count, x: x, objects, [1.0], steps=5, evaluate=evaluate, evaluate_every=2,
            checkpoints=checkpoints, show=False,
        )  # fmt: skip
        assert (fitted.step, fitted.reason) == (2, "SIGTERM")
        assert fitted.values["eval/p"] == (0.0 if is_donated else 1.0)
        assert [(each.step, each.metrics["eval/p"]) for each in checkpoints.all()] == [(2, fitted.values["eval/p"])]


@pytest.mark.parametrize("evaluate_every", [2, None])
def test_an_evaluation_that_a_signal_cuts_short_is_done_again(tmp_path, evaluate_every):
    """What a ``fit`` inside it had found in the steps until then was saved as the metrics of this step."""
    signals = [signal.SIGTERM]

    def inner_step(p, x):
        if p.value == 3 and signals:
            os.kill(os.getpid(), signals.pop())
        p.value += 1

    def evaluate():
        probe = {"p": plait.Param(0)}
        return {"steps": fit(inner_step, probe, [1.0], steps=9, show=False).step}

    def run():
        options = {"evaluate": evaluate, "evaluate_every": evaluate_every, "checkpoints": checkpoints, "show": False}
        return fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=3, **options)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Checkpoints(tmp_path) as checkpoints:
            fitted = run()
            assert (fitted.step, "eval/steps" in fitted.values) == (evaluate_every or 3, False)
            assert [each.step for each in checkpoints.all()] == [fitted.step]
            assert "eval/steps" not in checkpoints.all()[0].metrics
            assert run().values["eval/steps"] == 9
            assert checkpoints.all()[-1].metrics["eval/steps"] == 9
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_save_during_an_evaluation_that_fails_is_done_again_after_it(tmp_path, monkeypatch):
    """It counted as done, and its error was nobody's: an evaluation that raised then left no checkpoint."""
    finish, failed = orbax.Saving.finish, threading.Event()

    def finish_late(saving):
        if not failed.is_set():
            failed.set()
            raise OSError("the disk is full")
        finish(saving)

    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        assert failed.wait(30)
        raise OSError("the evaluation is wrong")

    monkeypatch.setattr(orbax.Saving, "finish", finish_late)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(
                lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=5, evaluate=evaluate, evaluate_every=2,
                checkpoints=checkpoints, show=False,
            )  # fmt: skip
        assert [each.step for each in checkpoints.all()] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 8])
def test_an_evaluation_that_did_not_happen_happens_when_the_run_resumes(tmp_path, steps):
    """At the end, or between: the metrics of an earlier one do not stand for it."""
    losses, fails, seen = iter([3.0, 2.0, 1.0]), [False, True, False, False], []
    objects = start()

    def evaluate():
        seen.append(int(objects["optimizer"].step.value))
        if fails.pop(0):
            raise OSError("no such file")
        return {"loss": next(losses)}

    def run():
        nonlocal objects
        objects = start()
        with Checkpoints(tmp_path) as checkpoints:
            return fit(
                train, objects, source, steps=steps, checkpoints=checkpoints, save_every=3, evaluate=evaluate,
                evaluate_every=2, show=False,
            )  # fmt: skip

    with pytest.raises(OSError, match="no such file"):
        run()
    if steps == 8:
        fails.append(False)
        losses = iter([2.0, 1.0, 0.5])
    fitted = run()
    assert seen == [2, 4, 4, 6, 8][: 3 if steps == 4 else 5]
    assert fitted.values["eval/loss"] == (2.0 if steps == 4 else 0.5)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.all()[-1].metrics["eval/loss"] == fitted.values["eval/loss"]


@pytest.mark.slow
def test_an_evaluation_that_a_resumed_run_does_again_counts_for_its_checkpoint(tmp_path):
    """Its metrics went to the next one, or to none: the best checkpoint was not ranked, and deleted."""
    found = {20: 0.1, 40: 0.5, 60: 0.4}

    def run(steps, folder, *signals):
        model, pending = plait.Variable(jnp.zeros((), int)), list(signals)

        def evaluate():
            for number in pending:
                os.kill(os.getpid(), number)
                wait_for(folder / "step-00000020")
                raise OSError("the process is killed")
            return {"loss": found[int(model[...])]}

        with Checkpoints(folder, keep=Keep(last=1, best=1, metric="eval/loss")) as checkpoints:
            fit(
                lambda model, x: model.set_value(model[...] + 1), {"model": model}, [1.0], steps=steps, save_every=20,
                checkpoints=checkpoints, evaluate=evaluate, evaluate_every=20, show=False,
            )  # fmt: skip
            return [(each.step, each.metrics["eval/loss"]) for each in checkpoints.all()]

    with pytest.raises(OSError, match="the process is killed"):
        run(60, tmp_path / "killed", signal.SIGTERM)
    assert run(60, tmp_path / "killed") == run(60, tmp_path / "whole") == [(20, 0.1), (60, 0.4)]


def test_positions_among_the_objects_are_those_before_an_evaluation(tmp_path):
    """A checkpoint that is saved during one had none, and no run could resume; one that failed left them moved."""
    model, extra = plait.Param(1.0), Batches([1.0, 2.0, 3.0, 4.0])
    fails = [True]

    def evaluate():
        assert next(extra) == 1.0
        if fails.pop():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(tmp_path / "step-00000002")
            again = Batches([1.0, 2.0, 3.0, 4.0])
            restore(tmp_path / "step-00000002", {"model": plait.Param(0.0), "extra": again, "data": Batches([1.0])})
            assert next(again) == 1.0
            raise OSError("the evaluation is wrong")
        return {"loss": 0.0}

    def run():
        with Checkpoints(tmp_path) as checkpoints:
            objects = {"model": model, "extra": extra}
            return fit(lambda *_: 0.0, objects, [1.0], steps=2, checkpoints=checkpoints, evaluate=evaluate, show=False)

    with pytest.raises(OSError, match="the evaluation is wrong"):
        run()
    assert next(extra) == 1.0
    fails.append(False)
    assert run().values["eval/loss"] == 0.0


@pytest.mark.slow
def test_batches_that_an_evaluation_takes_from_the_data_are_not_read_again(tmp_path):
    """The checkpoint had the position before it, and no second evaluation: a restart gave other numbers. One that a
    signal cuts short is done again, from where it began."""

    def run(name, stop=None, cut_short=None):
        total, data, seen = plait.Variable(jnp.zeros(())), Batches([float(2**i) for i in range(20)]), []

        def evaluate():
            seen.append(next(data))
            if cut_short == len(seen):
                os.kill(os.getpid(), signal.SIGTERM)
                wait_for(tmp_path / name / f"step-{4 * cut_short:08}")
                raise OSError("it is cut short")
            return {"taken": seen[-1]}

        def end(info):
            if info.step == stop and "eval/taken" in info.values:
                info.stop("here")

        with Checkpoints(tmp_path / name) as checkpoints:
            fit(
                lambda total, x: total.set_value(total[...] + x), {"total": total}, data, steps=14, show=False,
                checkpoints=checkpoints, evaluate=evaluate, evaluate_every=4, callbacks=[end],
            )  # fmt: skip
        return float(total[...]), seen, data.get_state()

    total, seen, position = run("whole")
    assert len(seen) == 4  # after 4, 8, 12 and 14 steps
    run("stopped", stop=8)
    assert run("stopped") == (total, seen[2:], position)
    with pytest.raises(OSError, match="it is cut short"):
        run("cut short", cut_short=2)
    assert run("cut short") == (total, seen[1:], position)


@pytest.mark.parametrize("wrong", [CheckpointError("no teacher", at="here"), NonFiniteError("the probe is NaN")])
@pytest.mark.parametrize("where", ["callbacks", "evaluate"])
def test_errors_of_the_users_own_saves_and_losses_do_not_keep_the_state_from_being_saved(tmp_path, where, wrong):
    def fails(*_):
        raise wrong

    options = {"callbacks": [fails]} if where == "callbacks" else {"evaluate": fails}
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(type(wrong)) as caught:
            fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=3, checkpoints=checkpoints, show=False, **options)
        assert caught.value is wrong
        assert [each.step for each in checkpoints.all()] == [3]


@pytest.mark.parametrize("way", ["fails", "is cut short"])
def test_a_state_that_an_evaluation_has_donated_is_not_saved_if_that_fails(tmp_path, way):
    """A checkpoint held what was after no step."""
    adapt = plait.jit(lambda count: count.set_value(count[...] + 1), donate=True)
    objects = {"count": plait.Param(jnp.zeros((), int))}

    def evaluate():
        adapt(objects["count"])
        if way == "fails":
            raise OSError("the evaluation is wrong")
        fit(lambda p, x: os.kill(os.getpid(), signal.SIGTERM), {"p": plait.Param(1.0)}, [1], steps=2, show=False)
        return {"loss": 1.0}

    def run():
        return fit(
            lambda count, x: count.set_value(count[...] + 1), objects, [1.0], steps=4, checkpoints=checkpoints,
            evaluate=evaluate, evaluate_every=4, save_every=3, show=False,
        )  # fmt: skip

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Checkpoints(tmp_path) as checkpoints:
            if way == "fails":
                with (
                    pytest.raises(OSError, match="the evaluation is wrong"),
                    pytest.warns(CheckpointWarning, match=r"after step 4 is not saved(?s:.*)at +count\n(?s:.*)clone"),
                ):
                    run()
            else:  # what comes after it is what the user has made of it
                run()
            assert [each.step for each in checkpoints.all()] == ([3] if way == "fails" else [3, 4])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_callbacks_beside_one_that_fails_see_all_moments(tmp_path):
    """Their states were saved without, so that early stopping counted one less in the resumed run."""
    seen, fails = [], [True]

    def upload(info):
        if info.step == 2 and fails:
            fails.pop()
            raise OSError("no network")

    def run():
        with Checkpoints(tmp_path) as checkpoints:
            fit(
                lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=4, checkpoints=checkpoints, log_every=1,
                callbacks=[upload, lambda info: seen.append(info.step)], show=False,
            )  # fmt: skip

    with pytest.raises(OSError, match="no network"):
        run()
    run()
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("part", ["data", "callback", "objects"])
def test_what_cannot_be_saved_is_an_error_before_the_first_step(tmp_path, part):
    """It was one at the first save, which may come after all steps."""

    class Counting(EarlyStop):
        def get_state(self):
            return {1: 2}

    data = Batches([1.0])
    if part == "data":
        data.get_state = lambda: (1, 2)
    callbacks = [Counting("loss", patience=2)] if part == "callback" else []
    objects = {"p": plait.Param(1.0), **({"odd": 3} if part == "objects" else {})}
    done = []
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(ArgumentTypeError, match=r"(cannot store|a checkpoint stores)"),
    ):
        fit(lambda *_: done.append(1), objects, data, steps=3, checkpoints=checkpoints, callbacks=callbacks, show=False)
    assert done == []
    fit(lambda *_: done.append(1) or 1.0, objects, data, steps=3, callbacks=callbacks, show=False)
    assert done, "without checkpoints nothing is stored"


def test_a_process_that_has_failed_begins_no_evaluation_if_a_signal_was_first(monkeypatch):
    """All hear the first word, here that of another process; those that hear of the error do not evaluate."""
    monkeypatch.setattr(
        SingleProcess, "worst", lambda self, word, name=None: "signal" if "before" in (name or "") else word
    )
    evaluated = []

    def fails(info):
        raise OSError("the callback is wrong")

    with pytest.raises(OSError, match="the callback is wrong"):
        fit(
            lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=4, log_every=1, callbacks=[fails], show=False,
            evaluate=lambda: evaluated.append(1) or {}, evaluate_every=1,
        )  # fmt: skip
    assert evaluated == []


@pytest.mark.slow
def test_data_that_is_not_there_yet_belongs_to_the_next_run_too(tmp_path):
    """With a limit, the thread of the earlier run moved the data when the later one had begun to read it."""
    slow = threading.Event()

    def epoch(_):
        for number in range(1, 100):
            if number == 4 and not slow.is_set():
                slow.set()
                time.sleep(1)
            yield number

    total, data = plait.Variable(jnp.zeros((), int)), Batches(epoch)

    def run(timeout):
        with Checkpoints(tmp_path) as checkpoints:
            return fit(
                lambda total, x: total.set_value(total[...] + x), {"total": total}, data, steps=20,
                checkpoints=checkpoints, data_timeout=timeout, show=False,
            )  # fmt: skip

    with pytest.raises(DataError):
        run(0.2)
    with pytest.raises(DataError):
        run(0.2)
    assert run(None).step == 20
    assert int(total[...]) == sum(range(1, 21))


def test_a_run_that_was_stopped_early_does_not_go_on(tmp_path):
    def run():
        with Checkpoints(tmp_path) as checkpoints:
            return fit(
                train, start(), source, steps=50, checkpoints=checkpoints, evaluate_every=2, show=False,
                evaluate=lambda: {"loss": 1.0}, callbacks=[EarlyStop("eval/loss", patience=2)],
            )  # fmt: skip

    first = run()
    assert first.step == 6
    assert run() == first


def test_states_of_callbacks_go_by_what_they_watch(tmp_path):
    def run(steps, *callbacks):
        with Checkpoints(tmp_path) as checkpoints:
            fit(
                train, start(), source, steps=steps, checkpoints=checkpoints, evaluate_every=2, show=False,
                evaluate=lambda: {"loss": 1.0, "accuracy": 0.5}, callbacks=callbacks,
            )  # fmt: skip

    run(4, EarlyStop("eval/loss", patience=9))
    by_accuracy, by_loss = EarlyStop("eval/accuracy", patience=9, mode="max"), EarlyStop("eval/loss", patience=9)
    run(6, by_accuracy, by_loss)
    assert (by_accuracy.best, by_accuracy.worse, by_loss.best, by_loss.worse) == (-0.5, 0, 1.0, 2)


class Remembers:
    """A callback whose state is what ``of`` makes of the values that it has heard."""

    def __init__(self, of):
        self.of, self.heard, self.restored = of, [], None

    def __call__(self, info):
        self.heard.append(info.step)

    def get_state(self):
        return self.of(self.heard)

    def set_state(self, state):
        self.restored = state


def fail_late(heard):
    return heard.missing if len(heard) > 2 else "early"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("of", "error"),
    [
        (lambda heard: jnp.nan if len(heard) > 2 else 0.0, ArgumentTypeError),
        (lambda heard: jnp.ones(2) if len(heard) > 2 else "early", ArgumentTypeError),
        (lambda heard: {len(heard): 1} if len(heard) > 2 else {}, ArgumentTypeError),
        (fail_late, AttributeError),
    ],
)
def test_a_state_of_a_callback_that_can_no_longer_be_saved_costs_no_step(tmp_path, of, error):
    def run(*callbacks):
        objects = start()
        with Checkpoints(tmp_path) as checkpoints:
            fit(
                train, objects, source, steps=6, checkpoints=checkpoints, save_every=2, log_every=1, show=False,
                callbacks=callbacks,
            )  # fmt: skip
        return objects

    with pytest.raises(error):
        run(Remembers(of), Remembers(list))
    manifest = plait.checkpoint.read_manifest(plait.checkpoint.latest(tmp_path))
    assert manifest.step == 4
    assert set(manifest.extra["callbacks"]) == {"Remembers 2"}
    lost, kept = Remembers(list), Remembers(list)
    run(lost, kept)
    assert (lost.restored, kept.restored) == (None, [1, 2, 3, 4])
    assert plait.checkpoint.read_manifest(plait.checkpoint.latest(tmp_path)).step == 6


def test_the_state_of_a_callback_is_that_of_the_step(tmp_path):
    """The file is written while training goes on: a state that the callback still changes was that of a later step."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, plait.Param(jnp.ones(1 << 20)), extra={"heard": (heard := [1])})
        heard.append(2)
        checkpoints.wait()
        assert plait.checkpoint.read_manifest(checkpoints.all()[-1].path).extra == {"heard": [1]}


def test_parameters_that_became_nan_after_the_loss_was_computed_are_not_saved(tmp_path):
    """Or each resumed run would fail at once."""

    @plait.jit
    def step(p, x):
        loss, grad = plait.value_and_grad(lambda p: jnp.sqrt(p[...] * x))(p)
        p[...] -= grad
        return loss

    objects = {"p": plait.Param(jnp.float32(9.0))}
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(NonFiniteError, match=r"parameters are NaN after step 2(?s:.*)at +p\n"):
            fit(
                step,
                objects,
                [np.float32(4), np.float32(0)],
                steps=9,
                checkpoints=checkpoints,
                save_every=1,
                show=False,
            )
        assert [saved.step for saved in checkpoints.all()] == [1]


def test_the_last_step_is_logged_however_the_run_ends():
    """A loss that is NaN is found, too."""
    objects = {"p": plait.Param(jnp.float32(1.0))}
    fitted = fit(lambda p, x: p[...] * x, objects, Batches([1.0, 2.0, 3.0], epochs=1), steps=9, show=False)
    assert (fitted.step, fitted.values, fitted.reason) == (3, {"loss": 3.0}, "data")
    with pytest.raises(NonFiniteError, match="the loss is nan at step 2"):
        fit(lambda p, x: p[...] * x, objects, Batches([1.0, np.nan], epochs=1), steps=9, show=False)
    only_at_the_end = fit(lambda p, x: p[...] * x, objects, [2.0], steps=3, log_every=None, show=False)
    assert only_at_the_end.values == {"loss": 2.0}


def test_a_checkpoint_has_the_metrics_of_its_own_step(tmp_path):
    """Also between two logs; ``Keep(best=...)`` ranks by them."""
    with Checkpoints(tmp_path) as checkpoints:
        fit(
            lambda p, x: p[...] * x, {"p": plait.Param(jnp.float32(1))}, [1.0, 2.0, 3.0, 4.0, 5.0], steps=5,
            checkpoints=checkpoints, save_every=1, log_every=4, show=False,
        )  # fmt: skip
        found = {saved.step: saved.metrics["loss"] for saved in checkpoints.all()}
    assert found == {step: float(step) for step in found}
    assert len(found) > 1


def test_a_signal_during_a_loop_inside_a_loop_ends_both():
    def probe():
        fit(lambda p, x: os.kill(os.getpid(), signal.SIGTERM), {"p": plait.Param(1.0)}, [1], steps=2, show=False)
        return {"loss": 1.0}

    fitted = fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=30, evaluate=probe, evaluate_every=2, show=False)
    assert (fitted.step, fitted.reason) == (2, "SIGTERM")


def test_an_evaluation_that_wants_the_numbers_of_a_loop_that_was_cut_short_is_one_too(tmp_path):
    """It raised KeyError, and a run that was asked to end had failed."""

    def probe():
        ask = lambda p, x: os.kill(os.getpid(), signal.SIGTERM) or 0.0
        return {"loss": fit(ask, {"p": plait.Param(1.0)}, [1], steps=2, show=False).values["loss"]}

    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(
            lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=30, evaluate=probe, evaluate_every=2, show=False,
            checkpoints=checkpoints,
        )  # fmt: skip
        assert [each.step for each in checkpoints.all()] == [2]
    assert (fitted.step, fitted.reason, fitted.exit_status) == (2, "SIGTERM", 128 + signal.SIGTERM)


@pytest.mark.parametrize("where", ["step", "callback"])
def test_a_loop_inside_a_step_or_a_callback_is_not_cut_short(where):
    """A signal ends the outer loop after this step, and its state is that of a whole one."""
    trained = []

    def probe(*_):
        inner = plait.Param(jnp.zeros(()))

        def add(inner, x):
            if len(trained) == 1 and x == 2.0:
                os.kill(os.getpid(), signal.SIGTERM)
            inner.value += x

        fit(add, {"inner": inner}, Batches([1.0, 2.0, 3.0]), steps=3, show=False)
        trained.append(float(inner[...]))

    fitted = fit(
        probe if where == "step" else lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=9, show=False,
        log_every=1, callbacks=[probe] if where == "callback" else [],
    )  # fmt: skip
    assert set(trained) == {6.0}
    assert (fitted.step, fitted.reason) == (len(trained), "SIGTERM")
    assert fitted.step < 9


@pytest.mark.sampled
@pytest.mark.parametrize("data", [lambda each: Batches(each, epochs=1), lambda each: each(0)], ids=["position", "none"])
@pytest.mark.parametrize("ahead", [lambda data: data, prefetch])
def test_a_batch_that_was_late_is_trained_on_when_the_run_goes_on(data, ahead):
    """Without checkpoints, whose positions would say so."""
    freed = threading.Event()

    def epoch(_):
        for number in range(1, 7):
            if number == 3:
                freed.wait()
            yield np.float32(number)

    seen, batches = [], ahead(data(epoch))
    run = lambda: fit(
        lambda p, x: seen.append(float(x)), {"p": plait.Param(1.0)}, batches, steps=9, data_timeout=0.3, show=False
    )
    with pytest.raises(DataError):
        run()
    assert seen == [1.0, 2.0]
    freed.set()
    time.sleep(0.5)
    assert run().reason == "data"
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_program_that_exits_well_has_not_if_its_state_could_not_be_saved(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def batches():
        yield from range(5)
        raise SystemExit(0)

    monkeypatch.setattr(orbax, "write_manifest", full)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match="No space left"):
        fit(
            lambda p, x: x,
            {"p": plait.Param(1.0)},
            Batches(lambda _: batches()),
            steps=9,
            checkpoints=checkpoints,
            show=False,
        )


@pytest.mark.parametrize("ends_by", ["data", "signal", "save"])
def test_a_save_that_failed_does_not_take_the_next_one_with_it(tmp_path, monkeypatch, ends_by):
    """The disk was full for a moment. The run ends, with all its steps, and says so."""
    write = orbax.write_manifest

    def full(path, manifest):
        if manifest.step == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, manifest)

    def batches(_):
        for number in range(1, 60):
            if number == 16 and ends_by == "data":
                raise OSError("the data is gone")
            if number == 16 and ends_by == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            yield np.float32(number)

    monkeypatch.setattr(orbax, "write_manifest", full)
    total = plait.Variable(jnp.zeros(()))
    with Checkpoints(tmp_path) as checkpoints, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises((OSError, CheckpointError)) as caught:
            fit(
                lambda total, x: total.set_value(total[...] + x), {"total": total}, Batches(batches), steps=40,
                checkpoints=checkpoints, save_every=10, show=False,
            )  # fmt: skip
        last = {"data": 15, "signal": 15, "save": 20}[ends_by]
        assert [each.step for each in checkpoints.all()] == [last]
        checkpoints.restore({"total": total}, partial=True)
    assert total[...] == last * (last + 1) / 2
    said = [str(each.message) for each in warned if issubclass(each.category, CheckpointWarning)]
    assert "No space left" in (said[0] if ends_by == "data" else str(caught.value))
    assert type(caught.value) is (OSError if ends_by == "data" else CheckpointError)


def test_steps_may_be_a_number_of_numpy():
    assert fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=np.int64(2), show=False).step == 2


@pytest.mark.parametrize("by_signal", [False, True])
def test_what_an_evaluation_that_raises_has_counted_in_place_is_taken_back(tmp_path, by_signal):
    """NumPy arrays were kept by identity: the checkpoint had the counts of half an evaluation."""
    counts, fails = plait.Variable(np.zeros(2)), [True]

    def evaluate():
        for number in range(4):
            if number == 2 and fails.pop():
                if by_signal:
                    os.kill(os.getpid(), signal.SIGTERM)
                    wait_for(tmp_path / "step-00000004")
                raise OSError("the evaluation is wrong")
            array = counts.get_raw_value()
            array[0] += 1
        return {"counted": array[0]}

    array = counts.get_raw_value()
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(
                lambda counts, x: None, {"counts": counts}, [1.0], steps=4, checkpoints=checkpoints, evaluate=evaluate,
                show=False,
            )  # fmt: skip
        assert array.tolist() == [0.0, 0.0]
        assert counts.get_raw_value() is array
        saved = plait.Variable(np.ones(2))
        checkpoints.restore({"counts": saved}, partial=True)
        assert np.asarray(saved[...]).tolist() == [0.0, 0.0]


def test_an_evaluation_that_raises_leaves_the_variables_as_they_were(tmp_path):
    """It had put averages in the place of the weights, and those were saved. What it has donated stays as it is."""
    objects, whole = {**start(), "seen": plait.Variable(jnp.zeros(()))}, start()

    @plait.jit(donate=True)
    def note(seen):
        seen[...] += 1

    def evaluate():
        objects["model"].last.kernel[...] = jnp.full((8, 1), 7.0)
        note(objects["seen"])
        raise OSError("the evaluation is wrong")

    fit(train, whole, source, steps=4, show=False)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(
                lambda model, optimizer, seen, batch: train(model, optimizer, batch), objects, source, steps=4,
                checkpoints=checkpoints, evaluate=evaluate, show=False,
            )  # fmt: skip
        saved = {**start(), "seen": plait.Variable(jnp.zeros(()))}
        manifest = checkpoints.restore(saved, partial=True)
    assert manifest is not None
    assert manifest.step == 4
    assert float(saved.pop("seen")[...]) == 1
    assert_same(values(saved), values(whole))


class Parts(plait.Module):
    """Modules and variables in all the containers that there are, and averages of the net."""

    def __init__(self):
        self.net = Net()
        self.ema = plait.EMA(self.net, 0.5, only=plait.Param)
        layers = [plait.Linear(2, 2, rngs=plait.Rngs(seed)) for seed in range(8)]
        self.several, self.named = plait.List(layers[:2]), plait.Dict(b=layers[2], a=layers[3])
        self.plain, self.by_name = [*layers[4:6], plait.Param(jnp.ones(2))], {"b": layers[6], "a": layers[7]}
        self.by_name["w"] = plait.Param(jnp.full(2, 2.0))
        self.pair = (plait.Param(jnp.zeros(2)), {"deep": [plait.Param(jnp.ones(3))]})
        self.table, self.mode = jnp.arange(3.0), "train"


def start_parts():
    parts = Parts()
    return {"parts": parts, "optimizer": plait.Optimizer(parts.net, optax.adam(1e-2), wrt=plait.Param)}


@plait.jit(donate=True)
def train_parts(parts, optimizer, batch):
    loss, grads = plait.value_and_grad(lambda net: (net(batch) ** 2).mean())(parts.net)
    optimizer.update(parts.net, grads)
    parts.ema.update(parts.net)
    return loss


def other():
    return plait.Linear(2, 2, use_bias=False, rngs=plait.Rngs(9))


def everything_in(node):
    """What is where, by identity; plain containers and arrays too."""
    places = [*visit(node)]
    orders = [*node["parts"].named], [*node["parts"].by_name]
    found = {place.path: id(place.value) for place in places if not isinstance(place.value, plait.State)}
    return (found, orders), places  # the places keep the values alive


def reorder(named):
    named["b"] = named.pop("b")


CHANGES = {
    "averages": lambda parts: setattr(parts, "net", parts.ema.apply_to(parts.net)),
    "module": lambda parts: setattr(parts.net, "last", plait.Linear(8, 2, rngs=plait.Rngs(9))),
    "variable": lambda parts: setattr(parts.net.last, "kernel", plait.BatchStat(jnp.zeros((8, 2)))),
    "array instead of variable": lambda parts: setattr(parts.net, "last", jnp.zeros(3)),
    "array": lambda parts: setattr(parts, "table", jnp.zeros(5)),
    "deleted": lambda parts: delattr(parts.net, "last"),
    "added": lambda parts: setattr(parts.net, "extra", other()),
    "static": lambda parts: setattr(parts, "mode", "eval"),
    "modes": lambda parts: parts.net.eval(),
    "marked": lambda parts: setattr(parts, "mode", plait.data(3.0)),
    "shared": lambda parts: setattr(parts.net, "first", parts.net.last),
    "unshared": lambda parts: setattr(parts, "ema", plait.clone(parts.ema)),
    "exchanged": lambda parts: parts.plain.reverse(),
    "List": lambda parts: parts.several.__setitem__(0, other()),
    "List, longer": lambda parts: parts.several.append(other()),
    "List, shorter": lambda parts: parts.several.pop(0),
    "List, reversed": lambda parts: parts.several.reverse(),
    "Dict": lambda parts: parts.named.__setitem__("a", other()),
    "Dict, longer": lambda parts: parts.named.__setitem__("c", other()),
    "Dict, shorter": lambda parts: parts.named.pop("a"),
    "Dict, in another order": lambda parts: reorder(parts.named),
    "list": lambda parts: parts.plain.__setitem__(0, other()),
    "list, longer": lambda parts: parts.plain.append(other()),
    "list, shorter": lambda parts: parts.plain.pop(0),
    "list, a variable": lambda parts: parts.plain.__setitem__(2, plait.Param(jnp.zeros(3))),
    "list, another": lambda parts: setattr(parts, "plain", []),
    "dict": lambda parts: parts.by_name.__setitem__("a", other()),
    "dict, longer": lambda parts: parts.by_name.__setitem__("c", other()),
    "dict, shorter": lambda parts: parts.by_name.pop("a"),
    "dict, a variable": lambda parts: parts.by_name.__setitem__("w", parts.plain[2]),
    "dict, in another order": lambda parts: reorder(parts.by_name),
    "tuple": lambda parts: setattr(parts, "pair", parts.pair[:1]),
    "in a tuple": lambda parts: parts.pair[1]["deep"].append(other()),
}  # fmt: skip


@functools.cache
def parts_after(steps):
    objects = start_parts()
    fit(train_parts, objects, source, steps=steps, show=False)
    return values(objects)


@pytest.mark.sampled
@pytest.mark.parametrize("change", CHANGES)
def test_an_evaluation_that_raises_leaves_the_structure_as_it_was(tmp_path, change):
    """It had put another module in the place of one, and no checkpoint after it fitted the objects of a new start."""
    objects, before = start_parts(), []

    def evaluate():
        before.append(everything_in(objects))
        CHANGES[change](objects["parts"])
        assert everything_in(objects)[0] != before[0][0]
        raise OSError("the evaluation is wrong")

    definition = plait.graphdef(objects)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(train_parts, objects, source, steps=4, checkpoints=checkpoints, evaluate=evaluate, show=False)
        assert everything_in(objects)[0] == before[0][0]
        assert plait.graphdef(objects) == definition
        assert_same(values(objects), parts_after(4))
        fresh = start_parts()
        fitted = fit(train_parts, fresh, source, steps=5, checkpoints=checkpoints, show=False)
    assert fitted.step == 5
    assert_same(values(fresh), parts_after(5))
    batches = itertools.chain.from_iterable(source(epoch) for epoch in itertools.count())
    train_parts(*objects.values(), next(itertools.islice(batches, 4, None)))  # compiled before the evaluation
    assert_same(values(objects), parts_after(5))


def test_an_array_that_an_evaluation_has_donated_stays_what_was_made_of_it(tmp_path):
    """The array before is deleted: it cannot be saved. What stood beside it is put back."""
    objects = {"parts": start_parts()["parts"], "counts": {"seen": jnp.zeros(2)}}

    def evaluate():
        parts, counts = objects["parts"], objects["counts"]
        step = jax.jit(lambda array: array + 1, donate_argnums=0)
        parts.table, parts.pair = step(parts.table), parts.pair[:1]
        counts["seen"], counts["more"] = step(counts["seen"]), jnp.zeros(3)
        raise OSError("the evaluation is wrong")

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(
                lambda parts, counts, x: 0.0, objects, source, steps=2, checkpoints=checkpoints, evaluate=evaluate,
                show=False,
            )  # fmt: skip
        fresh = {"parts": start_parts()["parts"], "counts": {"seen": jnp.zeros(2)}}
        checkpoints.restore(fresh, partial=True)
    assert fresh["parts"].table.tolist() == [1.0, 2.0, 3.0]
    assert fresh["counts"]["seen"].tolist() == [1.0, 1.0]
    assert len(objects["parts"].pair) == 2
    assert [*objects["counts"]] == ["seen"]


def test_a_node_of_a_registered_type_is_put_back_too(tmp_path):
    """Its flatten may fail on what the evaluation has left."""
    objects = {"box": Box()}
    kept = objects["box"].value

    def evaluate():
        del objects["box"].value
        raise OSError("the evaluation is wrong")

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the evaluation is wrong"):
            fit(lambda box, x: 0.0, objects, [1.0], steps=2, checkpoints=checkpoints, evaluate=evaluate, show=False)
        checkpoints.restore({"box": Box()}, partial=True)
    assert objects["box"].value is kept


class Box:
    def __init__(self):
        self.value = plait.Param(jnp.zeros(2))


plait.graph.register_graph_node_type(
    Box,
    flatten=lambda box: ([("value", box.value)], None),
    set_key=lambda box, key, value: setattr(box, key, value),
    pop_key=lambda box, key: box.__dict__.pop(key),
    create_empty=lambda metadata: Box.__new__(Box),
    clear=lambda box: box.__dict__.clear(),
    init=lambda box, children: box.__dict__.update(children),
)


def test_a_finished_run_that_is_started_again_changes_nothing(tmp_path):
    """Its last numbers are those of its checkpoint, its log stays, and nothing is evaluated again."""
    calls = []

    def evaluate():
        calls.append(1)
        return {"loss": 1.5}

    found = []
    for _ in range(2):
        with Checkpoints(tmp_path / "checkpoints") as checkpoints:
            options = {"checkpoints": checkpoints, "save_every": 3, "log_every": 3, "evaluate": evaluate, "show": False}
            log = JsonLines(tmp_path / "log.jsonl")
            found.append(fit(train, start(), source, steps=6, loggers=[log], **options))
            assert checkpoints.all()[-1].metrics == found[0].values
        rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [(row["step"], *sorted(row.keys() - {"step"})) for row in rows] == [
            (3, "loss"), (6, "loss"), (6, "eval/loss"),
        ]  # fmt: skip
    assert found[0] == found[1]
    assert set(found[0].values) == {"loss", "eval/loss"}
    assert len(calls) == 1


@pytest.mark.slow
def test_an_evaluation_is_a_metric_of_one_checkpoint_alone(tmp_path):
    """Otherwise later checkpoints, which were not evaluated, would rank as the best."""
    numbers = iter([1.0, 2.0, 3.0])
    with Checkpoints(tmp_path, keep=Keep(last=1, best=2, metric="eval/loss")) as checkpoints:
        fit(
            train, start(), source, steps=9, checkpoints=checkpoints, save_every=1, evaluate_every=3,
            evaluate=lambda: {"loss": next(numbers)}, show=False,
        )  # fmt: skip
        found = {saved.step: saved.metrics.get("eval/loss") for saved in checkpoints.all()}
    assert found == {3: 1.0, 6: 2.0, 9: 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [5, 6, 9])
def test_early_stopping_goes_on_where_it_was(tmp_path, stop):
    """The run that is resumed ends at the step of the unbroken one: what it waited for is in the checkpoint."""

    def step(model, optimizer, batch):
        if int(optimizer.step.value) + 1 == ends_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(model, optimizer, batch)

    def run(folder):
        losses = [3.0, 2.0, 1.0, 2.5, 2.2, 2.1, 2.0, 1.9]
        objects = start()
        with Checkpoints(tmp_path / folder) as checkpoints:
            return fit(
                step, objects, source, steps=50, checkpoints=checkpoints, evaluate_every=2, show=False,
                evaluate=lambda: {"loss": losses[int(objects["optimizer"].step.value) // 2 - 1]},
                callbacks=[EarlyStop("eval/loss", patience=3), EarlyStop("loss", patience=9), lambda info: None],
            )  # fmt: skip

    ends_at = None
    whole = run("whole")
    assert whole.step == 12
    ends_at = stop
    assert run("parts").step == stop
    assert run("parts") == whole


@pytest.mark.slow
def test_evaluation_is_logged_saved_and_can_end_it(tmp_path):
    losses = iter([3.0, 2.0, 2.5, 2.2, 1.0])
    moments = []
    with Checkpoints(tmp_path, keep=Keep(last=1, best=1, metric="eval/loss")) as checkpoints:
        fitted = fit(
            train,
            start(),
            source,
            steps=50,
            checkpoints=checkpoints,
            save_every=2,
            evaluate=lambda: {"loss": next(losses)},
            evaluate_every=2,
            callbacks=[EarlyStop("eval/loss", patience=2), moments.append],
            show=False,
        )
        assert fitted.step == 8
        assert fitted.reason.startswith("no lower eval/loss")
        assert checkpoints.best().step == 4
    assert [(m.step, m.values["eval/loss"]) for m in moments if "eval/loss" in m.values] == [
        (2, 3.0),
        (4, 2.0),
        (6, 2.5),
        (8, 2.2),
    ]


def test_no_step_waits_for_the_log():
    """Numbers of a step that is not done are not asked for before later ones are on their way."""
    asked = []

    class Late:
        """A scalar on a device that is far behind."""

        shape, dtype = (), np.dtype("float32")

        def __init__(self, number):
            self.number = number

        def is_ready(self):
            return False

        def __float__(self):
            asked.append((self.number, done[0]))
            return 0.0

        def __array__(self, dtype=None, copy=None):
            return np.zeros(())

    done = [0]

    def step(model, batch):
        done[0] += 1
        return Late(done[0])

    fit(step, {"model": plait.Param(1.0)}, [1], steps=40, log_every=10, show=False)
    assert [number for number, _ in asked] == [10, 20, 30, 40]
    assert all(now >= min(number + 20, 40) for number, now in asked)


def test_progress_is_lines_where_nobody_looks(capsys, monkeypatch):
    """Step, numbers, rate, the time that is left, and the memory of a device that tells it."""

    class Device:
        def memory_stats(self):
            return {"bytes_in_use": 3 * 2**29}

    fit(train, start(), source, steps=1, show=False)  # compiling asks for the time too
    monkeypatch.setattr(run_of_fit.jax, "local_devices", lambda: [Device()])
    monkeypatch.setattr(reports, "is_there", lambda returned: True)
    ticks = itertools.count(0, 7200)  # two hours for each line
    monkeypatch.setattr(run_of_fit.time, "perf_counter", lambda: next(ticks))
    fit(train, start(), source, steps=6, log_every=2)
    parts = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in parts] == ["step 2", "step 4", "step 6"]
    assert all(line[1].startswith("loss ") for line in parts)
    rest = ["0.000278 steps/s", "1.50 GiB"]
    assert [line[2:] for line in parts] == [
        [rest[0], "4:00:00 left", rest[1]], [rest[0], "2:00:00 left", rest[1]], rest,
    ]  # fmt: skip


def test_the_rate_is_that_of_the_steps_whenever_their_metrics_are_read(capsys, monkeypatch):
    """The last ones are read one right after the other."""
    monkeypatch.setattr(reports, "is_there", lambda returned: False)

    def slow(p, x):
        time.sleep(0.02)
        return x

    fit(slow, {"p": plait.Param(1.0)}, [1.0], steps=6, log_every=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(float(re.search(r"(\S+) steps/s", line)[1]) <= 50 for line in lines)


@pytest.mark.parametrize(
    "number", [jnp.bfloat16(0.5), jnp.float16(0.5), jnp.array(True), True, 3, np.float64(2)], ids=repr
)
def test_numbers_of_any_dtype_are_logged(number):
    fitted = fit(lambda model, batch: {"x": number}, {"model": plait.Param(1.0)}, [1], steps=1, show=False)
    assert fitted.values == {"x": float(number)}


def scalars():
    return {name: plait.Param(jnp.asarray(float(place))) for place, name in enumerate(["teacher", "student"])}


@pytest.mark.parametrize("order", [["teacher", "student"], ["student", "teacher"]])
def test_objects_reach_the_parameters_of_their_names_in_any_order(order):
    """JAX sorts dicts, so objects that a transform returned have another order than they were written in."""

    @plait.jit
    def step(teacher, student, batch):
        student[...] += teacher[...] * batch + 1

    objects = {name: scalars()[name] for name in order}
    fit(step, objects, [jnp.ones(())], steps=1, show=False)
    assert (float(objects["teacher"][...]), float(objects["student"][...])) == (0.0, 2.0)


def test_other_names_take_the_objects_in_their_order():
    objects = scalars()
    fit(lambda t, s, batch: s.set_value(t[...] + 7.0), objects, [jnp.ones(())], steps=1, show=False)
    assert float(objects["student"][...]) == 7.0


def test_the_exit_status_is_that_of_the_signal():
    statuses = {"steps": 0, "data": 0, "SIGTERM": 143, "SIGINT": 130, "no lower loss 2 times": 0, "Signals": 0}
    assert {reason: run_of_fit.FitResult(3, {}, reason).exit_status for reason in statuses} == statuses


def test_which_metrics_are_losses():
    """``loss`` if there is one, otherwise those with this word in their names."""

    def run(**metrics):
        fit(lambda p, x: metrics, {"p": plait.Param(1.0)}, [1.0], steps=1, show=False)

    run(loss=1.0, other_loss=np.nan, accuracy=np.inf)
    run(accuracy=np.nan)
    for metrics in ({"loss": np.nan}, {"loss": -np.inf}, {"kl_loss": 1.0, "l2_loss": np.inf}):
        *_, (name, value) = metrics.items()
        with pytest.raises(NonFiniteError, match=f"the {name} is {value} at step 1") as caught:
            run(**metrics)
        assert (caught.value.parts["at"], caught.value.parts["found"]) == ("the loss", "finite variables")


def test_numbers_are_logged_at_multiples_and_at_the_end():
    class Log:
        def __init__(self):
            self.steps, self.closed = [], 0

        def write(self, step, values):
            self.steps.append((step, *values))

        def close(self):
            self.closed += 1
            raise OSError("as if the disk were full")

    expected = {3: [3, 6, 7], 7: [7], 1: [*range(1, 8)], None: [7], 9: [7]}
    for every, steps in expected.items():
        log, moments = Log(), []
        objects = {"p": plait.Param(1.0)}
        fitted = fit(
            lambda p, x: jnp.asarray(x), objects, Batches(lambda epoch: [0.5, 1.5]), steps=7, log_every=every,
            loggers=[log], callbacks=[moments.append], show=False,
        )  # fmt: skip
        assert (log.steps, log.closed) == ([(step, "loss") for step in steps], 1)
        assert [(m.step, m.values["loss"]) for m in moments] == [(n, 0.5 if n % 2 else 1.5) for n in steps]
        assert moments[0].objects == objects
        assert (fitted.step, fitted.values, fitted.reason) == (7, {"loss": 0.5}, "steps")


def test_a_callback_that_raises_each_time_does_not_keep_the_state_from_being_saved(tmp_path, monkeypatch):
    """What was still to be told to it raised again, in the save."""
    monkeypatch.setattr(reports, "is_there", lambda returned: False)
    steps = []

    def raises(info):
        steps.append(info.step)
        if info.step >= 3:
            raise OSError("the callback is wrong")

    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(OSError, match="the callback is wrong"):
            fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=9, log_every=1, callbacks=[raises],
                checkpoints=checkpoints, show=False)  # fmt: skip
        assert [saved.step for saved in checkpoints.all()] == [5]
    assert steps == [1, 2, 3]


def test_a_callback_ends_the_run_after_the_step_with_its_reason():
    def stop(info):
        if info.step == 2:
            info.stop("enough")
            info.stop("later ones do not count")

    fitted = fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0], steps=9, log_every=1, callbacks=[stop], show=False)
    assert fitted.reason == "enough"
    assert fitted.step < 9


def test_the_display_goes_on_with_each_step_and_says_what_is_logged(monkeypatch):
    shown = []

    class Display:
        def advance(self):
            shown.append(1)

        def say(self, text):
            shown.append(text.split("  ")[0])

    @contextlib.contextmanager
    def display(total, **options):
        shown.append((total, options))
        yield Display()

    monkeypatch.setattr(reports, "progress", display)
    fit(lambda p, x: 1.0, {"p": plait.Param(1.0)}, [1.0], steps=3, log_every=2)
    assert shown[:2] == [(3, {"done": 0}), 1]
    assert shown.count(1) == 3
    assert [each for each in shown if isinstance(each, str)] == ["step 2", "step 3"]


def test_processes_at_different_steps_are_told(monkeypatch):
    """The agreement says that step 5 is done, but this process has the batches of four."""
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    run = run_of_fit.Run(train, {}, [1.0], None, None, (), (), None)
    run.steps, run.first, run.ahead = 9, 1, Ahead(run.data, 1, 4)
    run.ahead.ended = StopIteration()
    with pytest.raises(ProcessError) as caught:
        run.begins(5)
    told = """the processes of this run are at different steps, and cannot end at the same one
  at        process 3
  found     another has begun step 5, for which this one has no batch
  expected  steps in which the processes wait for each other, as for the loss of all
  do        resume from the newest checkpoint, with data of the same length on all processes"""
    assert str(caught.value) == told


def test_a_call_for_fewer_steps_than_are_done_does_not_evaluate(tmp_path):
    """Two phases with one folder: after a restart in the second, the first evaluated the state of the second."""
    evaluations = []

    def start(*phases):
        total = plait.Param(jnp.zeros(()))

        def evaluate():
            evaluations.append(float(total[...]))
            return {"total": total[...]}

        def step(total, x):
            total[...] += x

        with Checkpoints(tmp_path) as checkpoints:
            for steps in phases:
                fit(
                    step, {"total": total}, Batches([jnp.ones(())] * 40), steps=steps, checkpoints=checkpoints,
                    evaluate=evaluate, evaluate_every=4, show=False,
                )  # fmt: skip

    start(4, 11)
    assert evaluations == [4.0, 8.0, 11.0]
    start(4, 8, 14)
    assert evaluations == [4.0, 8.0, 11.0, 12.0, 14.0]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 1])
def test_a_phase_that_a_callback_has_ended_does_not_go_on_after_a_restart_in_a_later_one(tmp_path, kills):
    """Checkpoints of the second phase had no states of callbacks of the first, which went on with its own data."""
    total = plait.Param(jnp.zeros(()))
    evaluated = []

    def step(total, x):
        total[...] += x
        if kills and float(total[...]) == 230.0:  # with the data of the second phase
            raise OSError("killed")

    def evaluate():
        evaluated.append(float(total[...]))
        return {"loss": 1.0}

    def program():
        with Checkpoints(tmp_path) as checkpoints:
            early = EarlyStop("eval/loss", patience=2)
            first = fit(step, {"total": total}, [10.0], steps=20, checkpoints=checkpoints, evaluate=evaluate,
                        evaluate_every=1, callbacks=[early], show=False)  # fmt: skip
            assert first.reason.startswith("no lower eval/loss")
            return fit(step, {"total": total}, [100.0], steps=8, checkpoints=checkpoints, save_every=1, show=False).step

    for _ in range(kills):
        with pytest.raises(OSError, match="killed"):
            program()
        kills = 0
    assert program() == 8
    assert float(total[...]) == 3 * 10 + 5 * 100
    assert evaluated == [10.0, 20.0, 30.0]


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
def test_the_last_metrics_are_those_of_a_run_that_was_not_interrupted(tmp_path, value):
    """One that only some evaluations return was lost when the run resumed."""
    total = plait.Param(jnp.zeros(()))

    def run(steps, folder):
        def evaluate():
            return {"now": 1.0, **({"slow": value} if total[...] == 2 else {})}

        def step(total, x):
            total[...] += x
            return {"accuracy": total[...]}

        with Checkpoints(tmp_path / folder) as checkpoints:
            return fit(step, {"total": total}, [1.0], steps=steps, checkpoints=checkpoints, evaluate=evaluate,
                       evaluate_every=2, save_every=1, log_every=5, show=False)  # fmt: skip

    whole = run(6, "whole")
    total[...] = 0.0
    run(3, "resumed")
    total[...] = 0.0
    resumed = run(6, "resumed")
    np.testing.assert_equal(resumed.values, whole.values)
    assert "eval/slow" in whole.values


def note(model, batch):
    return {"loss": batch, "accuracy": 1.0}


AWAITED = {
    "a metric of steps": (
        {"callbacks": EarlyStop("lss", patience=1)},
        r"callbacks\[0\]\n.*'lss'.*\n.*'loss', 'accuracy'",
    ),
    "a metric of evaluations": (
        {"callbacks": [EarlyStop("eval/los", patience=1)], "evaluate": lambda: {"loss": 1.0}, "evaluate_every": 1},
        r"'eval/los'\n.*'eval/loss'",
    ),
    "one of no evaluation": ({"keep": Keep(best=1, metric="eval/loss")}, "evaluate=None"),
    "of checkpoints": ({"keep": Keep(best=1, metric="lss")}, r"checkpoints\.keep\.metric\n.*'lss'"),
}


@pytest.mark.parametrize("case", AWAITED)
def test_a_metric_that_is_waited_for_in_vain_ends_the_run_at_the_first_report(tmp_path, case):
    more, named = AWAITED[case]
    keep = more.get("keep")
    more = {name: value for name, value in more.items() if name != "keep"}
    with Checkpoints(tmp_path, keep=keep) as checkpoints, pytest.raises(ArgumentError, match=named):
        fit(note, {"p": plait.Param(1.0)}, [1.0], steps=9, checkpoints=checkpoints, log_every=1, show=False, **more)
    assert 1 <= checkpoints.all()[-1].step < 9  # what was done is kept


def test_a_metric_that_comes_later_is_waited_for():
    """An evaluation may be reported before the first step, and the reverse."""
    stops = [EarlyStop("loss", patience=9), EarlyStop("eval/loss", patience=9)]
    evaluated = {"evaluate": lambda: {"loss": 1.0}, "evaluate_every": 2}
    for log_every in (1, 3):
        one = fit(
            note, {"p": plait.Param(1.0)}, [1.0], steps=4, log_every=log_every, callbacks=stops, show=False, **evaluated
        )
        assert one.step == 4


class Heard:
    def __init__(self):
        self.steps = []

    def write(self, step, values):
        self.steps.append(step)

    def close(self):
        pass


def test_a_folder_one_logger_and_one_callback_are_enough(tmp_path, capsys):
    logger, steps = Heard(), []
    given = {"loggers": logger, "callbacks": lambda info: steps.append(info.step), "log_every": 1}
    for number in (2, 3):
        fit(note, {"p": plait.Param(1.0)}, [1.0], steps=number, checkpoints=str(tmp_path / "run"), **given)
    assert steps == logger.steps == [1, 2, 3]
    assert f"resumed from step 2 in {tmp_path / 'run'}\n" in capsys.readouterr().out
    assert len(Checkpoints(tmp_path / "run").all()) == 2  # it is not locked any more


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 3},
        {"objects": [1]},
        {"checkpoints": 3},
        {"loggers": print},
        {"callbacks": [3]},
        {"evaluate": {"loss": 1.0}},
        {"data": 3},
        {"epochs": 0},
        {"steps": None},
        {"data": iter([1.0]), "epochs": 2},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_arguments_are_named_before_the_first_step(wrong):
    given = {"step": note, "objects": {"p": plait.Param(1.0)}, "data": [1.0], "steps": 2, **wrong}
    with pytest.raises((ArgumentError, ArgumentTypeError), match=rf"(at +|list or ){next(iter(wrong))}"):
        fit(**given, show=False)


def test_steps_and_evaluations_without_metrics_are_no_moments_for_callbacks():
    heard = []
    fit(lambda p, x: None, {"p": plait.Param(1.0)}, [1.0], steps=2, log_every=1, evaluate=dict, evaluate_every=1,
        callbacks=[heard.append], show=False)  # fmt: skip
    assert heard == []


@pytest.mark.parametrize(
    "returned",
    [(1.0, [2.0, 3.0]), [1.0], "1.0", {"loss": (1.0,)}, plait.Param(jnp.ones(2))],
    ids=["a tuple", "a list", "text", "a tuple in a dict", "a variable"],
)
def test_a_step_that_returns_no_numbers_is_named(returned):
    with pytest.raises(ArgumentTypeError, match=r"at +(the result|loss)\n *found .*(tuple|list|str|shape)"):
        fit(lambda p, batch: returned, {"p": plait.Param(1.0)}, [1.0], steps=2, show=False)


@pytest.mark.parametrize("make", [lambda: source(0), lambda: source, lambda: Batches(source)])
def test_epochs_are_counted_over_all_calls(tmp_path, make):
    """An epoch of the source has five batches."""
    for epochs in (1, 3, 3):
        data = make()
        found = fit(lambda *_: 1.0, {"p": plait.Param(1.0)}, data, epochs=epochs, checkpoints=tmp_path, show=False)
        assert (found.step, found.reason) == (5 * epochs, "data")
        assert getattr(data, "epochs", None) is None


def test_steps_and_epochs_end_a_run_by_what_comes_first():
    for steps, expected in ((7, 7), (99, 10)):
        data = Batches(source, epochs=2)
        assert fit(lambda *_: 1.0, {"p": plait.Param(1.0)}, data, steps=steps, epochs=4, show=False).step == expected
