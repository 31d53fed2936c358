"""Handlers of SIGCHLD while ``fit`` runs, as PyTorch sets one for the workers of a ``DataLoader``."""

import os
import signal

import jax.numpy as jnp
import pytest

import plait
from plait.checkpoint import Checkpoints
from plait.training import fit
from plait.training.loop.children import Children


class Counted:
    """Data with a position, whose first batch may set a handler, as the first batch of a ``DataLoader`` does."""

    def __init__(self, handler=None):
        self.count, self.handler = 0, handler

    def __iter__(self):
        return self

    def __next__(self):
        if self.handler is not None:
            signal.signal(signal.SIGCHLD, self.handler)
            self.handler = None
        self.count += 1
        return float(self.count)

    def get_state(self):
        return self.count

    def set_state(self, count):
        self.count = count


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def worker_died(*_):
    raise RuntimeError("a worker is killed")


@pytest.mark.parametrize("is_set", ["before", "by the data"])
@pytest.mark.parametrize("strikes", [1, 2, 4])
def test_a_worker_that_dies_in_a_step_is_an_error_of_the_data(tmp_path, strikes, is_set):
    """It was one of the step, after which nothing is saved."""
    if is_set == "before":
        signal.signal(signal.SIGCHLD, worker_died)

    def step(total, x):
        total[...] += x
        if x == strikes:
            os.kill(os.getpid(), signal.SIGCHLD)
        return total[...]

    total, data = plait.Param(jnp.zeros(())), Counted(worker_died if is_set == "by the data" else None)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(RuntimeError, match="a worker is killed"):
        fit(step, {"total": total}, data, steps=9, checkpoints=checkpoints, show=False)
    assert [saved.step for saved in Checkpoints(tmp_path).all()] == [strikes]
    assert signal.getsignal(signal.SIGCHLD) is worker_died


def test_workers_that_die_with_a_signal_that_ends_the_run_do_not_keep_it_from_saving(tmp_path, monkeypatch):
    """As when a scheduler signals every process of a job: the error came in the middle of the last save."""
    signal.signal(signal.SIGCHLD, worker_died)
    save = Checkpoints.save

    def late(*arguments, **named):
        os.kill(os.getpid(), signal.SIGCHLD)
        save(*arguments, **named)

    monkeypatch.setattr(Checkpoints, "save", late)

    def step(total, x):
        total[...] += x
        if x == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return total[...]

    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(
            step, {"total": plait.Param(jnp.zeros(()))}, Counted(), steps=9, checkpoints=checkpoints, show=False
        )
    assert (fitted.step, fitted.reason) == (3, "SIGTERM")
    assert [saved.step for saved in Checkpoints(tmp_path).all()] == [3]


def test_handlers_that_were_set_on_top_of_each_other_are_each_called_once():
    calls = []
    signal.signal(signal.SIGCHLD, lambda *_: calls.append("first"))
    children = Children()
    with children.held_back():
        children.hear()
        before = signal.getsignal(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, lambda *given: (calls.append("second"), before(*given)))
        children.go_on()
        os.kill(os.getpid(), signal.SIGCHLD)
        assert calls == []
        children.hear()
        assert calls == ["second", "first"]
        os.kill(os.getpid(), signal.SIGCHLD)
        assert calls == ["second", "first"] * 2
        children.go_on()
        os.kill(os.getpid(), signal.SIGCHLD)
        assert len(calls) == 4
    assert calls == ["second", "first"] * 3
    os.kill(os.getpid(), signal.SIGCHLD)
    assert calls == ["second", "first"] * 4


def test_without_a_handler_none_is_set():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    children = Children()
    with children.held_back():
        children.hear()
        children.go_on()
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
