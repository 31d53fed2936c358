"""Batches in hand, and signals while the data is slow: nothing is lost, and nobody waits."""

import collections
import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints
from plait.errors import CheckpointWarning
from plait.training import Batches, fit, prefetch
from plait.training.loop.ahead import Ahead
from plait.training.loop.prefetching import Prefetched
from plait.training.loop.timed_data import PositionedTimedData, timed

SLOW = 60  # seconds that nobody waits for
ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


class OwnPosition:
    """An iterator that moves its position before it has the batch, and returns its live position."""

    def __init__(self, source):
        self.source, self.position = source, {"index": 0}

    def __iter__(self):
        return self

    def __next__(self):
        self.position["index"] += 1
        try:
            return next(iter(self.source(self.position["index"] - 1)))
        except StopIteration:
            self.position["index"] -= 1
            raise

    def get_state(self):
        return self.position

    def set_state(self, position):
        self.position = dict(position)


class CountsInPlace:
    """An iterator whose position has the array with which it counts, also the one that it is given."""

    def __init__(self, source):
        self.source, self.count = source, np.zeros((), np.int64)

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        try:
            return next(iter(self.source(int(self.count) - 1)))
        except StopIteration:
            self.count -= 1
            raise

    def get_state(self):
        return {"count": self.count}

    def set_state(self, position):
        self.count = np.asarray(position["count"])


def numbers(first=0, *, wait=lambda number: None, end=8):
    for number in range(first, end):
        wait(number)
        yield number


KINDS = {
    "batches": lambda wait: Batches(lambda epoch: numbers(wait=wait), epochs=1),
    "laid out": lambda wait: Batches(lambda epoch: numbers(wait=wait), epochs=1, sharding=ONE_DEVICE),
    "own position": lambda wait: OwnPosition(lambda first: numbers(first, wait=wait)),
    "counts in place": lambda wait: CountsInPlace(lambda first: numbers(first, wait=wait)),
    "prefetched": lambda wait: prefetch(Batches(lambda epoch: numbers(wait=wait), epochs=1)),
    "timed": lambda wait: timed(Batches(lambda epoch: numbers(wait=wait), epochs=1), 2 * SLOW),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_does_not_wait_for_slow_data(tmp_path, kind):
    """The run is saved within a second or so, and goes on as if nothing had happened. (issue O)"""
    is_slow, freed, saved_at, seen = True, threading.Event(), [], []

    def wait(number):
        if number == 3 and is_slow:
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
            freed.wait(SLOW)

    def step(model, batch):
        seen.append(int(batch))
        model.value = model.value + 1

    model, data = plait.Param(jnp.zeros(())), KINDS[kind](wait)
    begun = time.monotonic()
    with Checkpoints(tmp_path) as checkpoints:
        save = checkpoints.save
        checkpoints.save = lambda *given, **named: (saved_at.append(time.monotonic() - begun), save(*given, **named))[1]
        fitted = fit(step, {"model": model}, data, steps=100, checkpoints=checkpoints, show=False)
        assert (fitted.step, fitted.reason) == (3, "SIGTERM")
        assert saved_at[0] < SLOW / 2
        assert [each.step for each in checkpoints.all()] == [3]
        is_slow = False
        freed.set()
        again = KINDS[kind](wait)
        fitted = fit(step, {"model": plait.Param(jnp.zeros(()))}, again, steps=100, checkpoints=checkpoints, show=False)
        assert (fitted.step, fitted.reason) == (8, "data")
    assert seen == [*range(8)]


@pytest.mark.parametrize("way", ["goes on", "ends", "raises", "gives what it has"])
def test_data_that_catches_all_does_not_train_on_what_a_signal_left_of_a_batch(tmp_path, way):
    """A bare ``except`` catches what ends the waiting too. The batch lacked a sample, or the run its rest."""
    is_signalled, seen = [True], []

    def source(epoch):
        for number in range(8):
            samples = []
            for sample in range(3):
                try:
                    if (number, sample) == (3, 1) and is_signalled.pop():
                        os.kill(os.getpid(), signal.SIGTERM)
                        time.sleep(SLOW)
                    samples.append(float(sample))
                except:  # noqa: E722
                    if way == "ends":
                        return
                    if way == "raises":
                        raise OSError("the sample is damaged") from None
                    if way == "gives what it has":
                        break
            yield {"number": number, "samples": samples}

    def run():
        with Checkpoints(tmp_path) as checkpoints:
            return fit(
                lambda model, batch: seen.append((batch["number"], len(batch["samples"]))),
                {"model": plait.Param(jnp.zeros(()))}, Batches(source, epochs=1), steps=100, checkpoints=checkpoints,
                show=False,
            )  # fmt: skip

    found = run()
    assert (found.step, found.reason) == (3, "SIGTERM")
    is_signalled.append(False)
    assert run().reason == "data"
    assert seen == [(number, 3) for number in range(8)]


def test_with_a_time_limit_a_signal_does_not_wait_for_data_that_catches_all(tmp_path):
    """It polled for ever, and what had started the run killed it after its grace period, with nothing saved."""
    freed = threading.Event()

    def source(epoch):
        yield from range(3)
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM]).start()
        while not freed.is_set():
            try:
                freed.wait(0.05)
            except:  # noqa: E722
                continue

    with Checkpoints(tmp_path) as checkpoints:
        fitted = fit(
            lambda model, batch: None, {"model": plait.Param(jnp.zeros(()))}, Batches(source), steps=100,
            checkpoints=checkpoints, data_timeout=SLOW, show=False,
        )  # fmt: skip
        assert (fitted.step, fitted.reason) == (3, "SIGTERM")
        assert [each.step for each in checkpoints.all()] == [3]
    freed.set()


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 does not trace the instructions of a frame")
@pytest.mark.parametrize("kind", ["batches", "laid out", "own position", "timed"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_wherever_a_signal_arrives_no_batch_is_lost(kind, ahead):
    """At each instruction at which it is heard: what was being fetched is fetched again."""
    for stop in range(1, 10_000):
        data = KINDS[kind](lambda number: None)
        found = Ahead(data, ahead, 0)
        found.fill(1, 8)
        taken = [found.take()]
        interrupt = Interrupt(found, stop)
        with interrupt:
            found.fill(2, 8)
        while found.ended is None or found.last > len(taken):
            found.fill(len(taken) + 1, 8)
            if found.last > len(taken):
                taken.append(found.take())
            if len(taken) == 8:
                break
        assert taken == [*range(8)], (stop, taken)
        if not interrupt.happened:
            assert stop > 10
            return
    raise AssertionError("there are too many instructions")


class Interrupt:
    """Raises ``Interrupted`` at the so manieth instruction at which a signal would raise it."""

    def __init__(self, found, stop):
        self.found, self.stop, self.happened = found, stop, False

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(("ahead.py", "batches.py", "timed_data.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.found.may_interrupt:
            self.stop -= 1
            if self.stop == 0:
                self.happened = True
                self.found.interrupt()
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)


def test_positions_are_those_of_their_batches_if_the_data_returns_a_live_one():
    found = Ahead(KINDS["own position"](lambda number: None), 2, 0)
    found.fill(1, 8)
    assert found.get_state() == {"index": 0}
    assert (found.take(), found.get_state()) == (0, {"index": 1})


def test_data_that_cannot_go_back_does_not_end_a_run_with_an_error():
    """It was raised instead of the run's own result: a signal's exit status was 1, and nothing restarted the run."""

    class Data(Batches):
        def set_state(self, state):
            if self.get_state() != {"epoch": 0, "index": 0}:
                raise RuntimeError("set the state before the first batch")
            super().set_state(state)

    found = Ahead(Data([1.0, 2.0, 3.0]), 2, 0)
    found.fill(1, 8)
    with pytest.warns(CheckpointWarning, match=r"(?s)could not go back.*RuntimeError: set the state before"):
        found.go_back()


def test_data_may_fill_one_array_with_every_batch():
    """FD3: the batches that are held are those that the data has returned."""
    rows = np.zeros(4)

    def source(epoch):
        for number in range(4):
            rows[:] = number
            yield {"x": rows}

    found = Ahead(Batches(source, epochs=1), 2, 0)
    found.fill(1, 4)
    assert [found.take()["x"].max() for _ in range(2)] == [0, 1]


def test_what_is_held_has_the_kind_that_it_had():
    """A batch of records lost its fields, and one with a mask was trained on without it."""
    pair = collections.namedtuple("Pair", "x y")
    given = {
        "records": np.rec.fromarrays([np.arange(3)], names="a"),
        1: (np.ma.array([1.0, 2.0], mask=[False, True]), pair(np.zeros(2), None)),
        "other": [1, "two", object],
    }
    found = Ahead(Batches([given]), 2, 0)
    found.fill(1, 4)
    batch = found.take()
    assert [*batch] == [*given]  # as with one process, which holds none
    assert batch["records"].a.tolist() == [0, 1, 2]
    assert batch[1][0].sum() == 1.0
    assert batch[1][1].x is not given[1][1].x
    assert (batch[1][1].y, batch["other"]) == (None, given["other"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    x: Any
    y: Any = None


def read_only(buffer):
    view = buffer.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize(
    "wrapped",
    [
        read_only,
        lambda buffer: {"x": buffer, 0: None},
        lambda buffer: collections.OrderedDict([("x", buffer), (0, None)]),
        lambda buffer: collections.defaultdict(list, {"x": buffer, 0: ()}),
        lambda buffer: collections.UserDict(x=buffer),
        lambda buffer: Pair(buffer),
        lambda buffer: Pair([buffer], Pair(buffer)),
        lambda buffer: jax.tree_util.Partial(len, buffer),
    ],
    ids=["view", "dict", "OrderedDict", "defaultdict", "UserDict", "dataclass", "nested", "Partial"],
)
def test_a_buffer_that_is_filled_again_is_copied_wherever_it_is(wrapped):
    buffer = np.zeros(2)
    given = wrapped(buffer)

    def batches():
        for number in itertools.count(1):
            buffer[...] = number
            yield given

    found = Ahead(batches(), 2, 0)
    found.fill(1, 9)
    held = [found.take() for _ in range(3)]
    assert [type(batch) for batch in held] == [type(given)] * 3
    arrays = [jax.tree.leaves(batch["x"] if isinstance(batch, Mapping) else batch)[0] for batch in held]
    assert [array.tolist() for array in arrays] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert (held[0] is given, buffer.tolist()) == (False, [3.0, 3.0])


def test_what_is_no_buffer_is_held_without_a_copy(tmp_path):
    """A table in a file that each batch refers to was read into memory, three times."""
    table = np.memmap(tmp_path / "table", np.float32, "w+", shape=(4,))
    constant = np.zeros(2)
    constant.flags.writeable = False
    found = Ahead(Batches([{"table": table, "constant": constant}]), 2, 0)
    found.fill(1, 4)
    batch = found.take()
    assert (batch["table"] is table, batch["constant"] is constant) == (True, True)


def test_a_batch_that_cannot_be_copied_is_an_error_of_the_data():
    """So the state is saved, and the resumed run reads the batch again."""

    class Uncopied(np.ndarray):
        def copy(self, *_):
            raise MemoryError

    found = Ahead(Batches([np.zeros(2), np.zeros(2).view(Uncopied)], epochs=1), 2, 0)
    found.fill(1, 4)
    assert isinstance(found.ended, MemoryError)
    assert (found.take().shape, found.get_state()) == ((2,), {"epoch": 0, "index": 1})


@pytest.mark.parametrize("hold", [lambda data: prefetch(data, 3), lambda data: timed(data, SLOW)])
def test_positions_of_what_is_read_in_a_thread_are_those_of_the_batches_taken(hold):
    """FD3: also if the data returns a live position, which moves on with what is read ahead."""
    data = hold(KINDS["own position"](lambda number: None))
    states = [data.get_state(), *((next(data), data.get_state())[1] for _ in range(3))]
    assert states == [{"index": number} for number in range(4)]
    again = hold(KINDS["own position"](lambda number: None))
    again.set_state(states[2])
    assert [int(each) for each in again] == [*range(2, 8)]


def test_what_hangs_is_not_waited_for_when_its_position_is_set():
    """It is done when the data goes on."""
    freed = threading.Event()
    data = Batches(lambda epoch: numbers(wait=lambda number: number != 1 or freed.wait(SLOW)), epochs=1)
    late = timed(data, 0.05)
    assert isinstance(late, PositionedTimedData)
    assert next(late) == 0
    with pytest.raises(plait.errors.DataError):
        next(late)
    late.set_state({"epoch": 0, "index": 0})
    freed.set()
    late.seconds = SLOW
    assert [*late] == [*range(8)]


def test_a_position_that_cannot_be_set_is_the_next_error():
    freed = threading.Event()
    data = Batches(lambda epoch: numbers(wait=lambda number: freed.wait(SLOW)), epochs=1)
    late = timed(data, 0.05)
    with pytest.raises(plait.errors.DataError):
        next(late)
    late.set_state({})
    freed.set()
    late.seconds = SLOW
    with pytest.raises(KeyError, match="epoch"):
        next(late)


def test_what_is_prefetched_stays_if_the_position_does():
    data = prefetch(Batches(lambda epoch: numbers(), epochs=1))
    assert isinstance(data, Prefetched)
    assert next(data) == 0
    held = [*data._held]
    data.set_state(data.get_state())
    assert [*data._held] == held
    assert [int(each) for each in data] == [*range(1, 8)]
