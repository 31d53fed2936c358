"""The agreement of processes on their last step, with threads for processes and a dict for the key-value store."""

import itertools
import random
import threading
import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError
from plait.partitioning.processes import all_processes, key_value_store
from plait.training import fit
from plait.training.loop import run as run_of_fit
from plait.training.loop.ahead import Ahead, Pace
from plait.training.loop.batches import Batches
from plait.training.loop.processes import agreement
from plait.training.loop.processes.agreement import AHEAD, Ending, MultiProcess, check_same, error_ending

STEPS = 12


class Board:
    """A key-value store for threads, each of which is one process, and so are the threads that it starts."""

    def __init__(self, processes):
        self.processes, self.texts, self.counts = processes, {}, {}
        self.changed = threading.Condition()

    def put_once(self, key, text):
        with self.changed:
            is_new = key not in self.texts
            self.texts.setdefault(key, text)
            self.changed.notify_all()
            return is_new

    def await_entry(self, key, seconds=None, *, each=None):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.texts, 20), key
            return self.texts[key]

    def entries_under(self, key):
        with self.changed:
            return [text for name, text in self.texts.items() if name.startswith(f"{key}/")]

    def remove(self, key):
        with self.changed:
            for kept in (self.texts, self.counts):
                for name in [name for name in kept if name.startswith(f"{key}/")]:
                    del kept[name]

    def is_last(self, key):
        with self.changed:
            self.counts[key] = self.counts.get(key, 0) + 1
            return self.counts[key] == self.processes


def index():
    """The number of the process to which this thread belongs."""
    return int(threading.current_thread().name.rpartition(" of process ")[2])


REAL_THREAD = threading.Thread


class NamedThread(REAL_THREAD):
    def __init__(self, *args, name="", **kwargs):
        super().__init__(*args, name=f"{name} of process {index()}", **kwargs)


@pytest.fixture(scope="module")
def simulated():
    """Run a function in several threads as if each were a process; return its results in order."""

    def run(processes, act):
        with pytest.MonkeyPatch.context() as monkeypatch:
            return _run(monkeypatch, processes, act)

    return run


def _run(monkeypatch, processes, act):
    board = Board(processes)
    for name in ("put_once", "await_entry", "entries_under", "is_last", "remove"):
        for user in (agreement, all_processes, key_value_store):
            monkeypatch.setattr(user, name, getattr(board, name), raising=user is not all_processes)
    monkeypatch.setattr(all_processes, "_NUMBERS", Numbers(processes))
    monkeypatch.setattr(jax, "process_index", index)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(threading, "Thread", NamedThread)
    found = [None] * processes

    def one(number):
        try:
            found[number] = act(number)
        except BaseException as error:
            found[number] = error

    mains = [REAL_THREAD(target=one, args=(number,), name=f"main of process {number}") for number in range(processes)]
    for thread in mains:
        thread.start()
    for thread in mains:
        thread.join(30)
        assert not thread.is_alive()
    return found


class Numbers:
    """A counter for each process."""

    def __init__(self, processes):
        self.counters = [itertools.count() for _ in range(processes)]

    def __next__(self):
        return next(self.counters[index()])


@st.composite
def schedules(draw):
    """For each process: after how many steps it calls, and what (or nothing); how many batches it has; a seed."""
    processes = draw(st.integers(2, 3))
    kinds = st.sampled_from(["signal", "callback", "error", None, None])
    calls = [(draw(st.integers(0, STEPS)), draw(kinds)) for _ in range(processes)]
    batches = [draw(st.sampled_from([0, 1, 2, 3, 5, 7, STEPS, STEPS])) for _ in range(processes)]
    return processes, calls, batches, draw(st.integers(0, 99))


class Line:
    """Steps that each process begins only when all have begun the one ``AHEAD`` before: what ``Pace`` waits for."""

    def __init__(self, processes):
        self.begun, self.changed = [0] * processes, threading.Condition()

    def wait(self, step):
        with self.changed:
            assert self.changed.wait_for(lambda: min(self.begun) >= step - AHEAD, 20)

    def begin(self, number, step):
        with self.changed:
            self.begun[number] = step
            self.changed.notify_all()


@settings(max_examples=40, deadline=None)
@given(schedule=schedules())
def test_all_end_after_the_same_step_with_the_same_reason(simulated, schedule):
    processes, calls, batches, seed = schedule
    line = Line(processes)

    def act(number):
        chance = random.Random(seed * 10 + number)
        after, kind = calls[number]
        agreed = MultiProcess(lambda event: None, lambda: None)
        data = Ahead(Batches(list(range(batches[number])) or [0], epochs=1), AHEAD, 0)
        if not batches[number]:
            data.ended = StopIteration()
            agreed.call(Ending("data", "data", last=0))
        done, told = 0, False
        while True:
            if kind and done == after:
                agreed.call(error_ending(OSError("gone")) if kind == "error" else Ending(kind, kind))
            if done == STEPS:
                agreed.call(Ending("steps", "steps", last=STEPS))
            if agreed.ending is None and data.ended is None:
                data.fill(done + 1, STEPS)
                if data.ended is not None:
                    agreed.call(Ending("data", "data", last=data.last))
            if done == 0 and not told:
                told = True
                agreed.await_first_batches(data.ended is not None)
            if done < STEPS:
                line.wait(done + 1)
            if not agreed.begins(done + 1, data.last, data.ended is not None):
                break
            done += 1
            data.take()
            line.begin(number, done)
            time.sleep(chance.random() / 500)
        error = agreed.first_error(None)
        agreed.close()
        return done, agreed.ending.reason, repr(error)

    results = simulated(processes, act)
    assert len({str(result) for result in results}) == 1, results
    done, reason, _ = results[0]
    assert done <= min(batches)
    if reason in ("data", "steps"):
        assert done == min([*batches, STEPS])
    else:
        assert done <= min(after for after, kind in calls if kind) + AHEAD


def test_processes_with_other_arguments_are_an_error_in_all(simulated):
    """They used to wait for each other without end, or to meet at different places: KeyError, and nothing saved."""
    same = simulated(3, lambda number: check_same({"steps": 5, "save_every": None}))
    assert same == [None] * 3
    given = {"steps": 5, "save_every": None, "evaluate": False}
    errors = simulated(
        3, lambda number: check_same(given | {"save_every": 7, "evaluate": True} if number == 1 else given)
    )
    assert [type(error) for error in errors] == [ArgumentError] * 3
    told = """the processes of this run call fit with different arguments
  at        save_every, evaluate
  found     save_every=7, evaluate=True; save_every=None, evaluate=False
  expected  the same in all processes, which evaluate and save together
  do        pass the same values, whatever jax.process_index() is; loggers write on process 0 alone"""
    assert [str(error) for error in errors] == [told] * 3
    assert all(error.raised_by_all for error in errors)


def test_processes_that_share_no_array_leave_no_entry_for_each_step(simulated):
    """The coordinator held two for each of them until the end."""

    def act(number):
        agreed = MultiProcess(lambda event: None, lambda: None)
        for step in range(1, 30):
            agreed.keep_pace(step)
        board = agreement.put_once.__self__
        with board.changed:
            held = [key for key in (*board.texts, *board.counts) if "/pace/" in key]
        agreed.call(Ending("steps", "steps"))
        agreed.begins(1, 1, True)
        agreed.close()
        return len(held)

    assert all(1 <= held <= 6 for held in simulated(3, act))


def test_numbers_of_numpy_are_numbers_of_steps(simulated):
    """They were an error of JSON, and only in several processes."""

    def act(number):
        check_same({"steps": np.int64(5)})
        agreed = MultiProcess(lambda event: None, lambda: None)
        agreed.begins(5, 5, True)
        agreed.call(Ending("steps", "steps", last=np.int64(5)))  # pyright: ignore[reportArgumentType]
        agreed.close()
        return agreed.last

    assert simulated(2, act) == [5, 5]


@pytest.mark.parametrize("read", [1, 2])
def test_a_step_that_begins_while_another_process_calls_is_voted_for_or_not_done(simulated, read):
    """The call arrives before the first or the second time that ``begins`` looks for one, for which it takes no lock.

    At the first, or between the two, the vote may have been cast without the step that is about to begin; after the
    step was noted, the vote has it.
    """
    voted, looking = threading.Event(), threading.Event()

    class Slow(MultiProcess):
        """Waits in ``begins`` of step 2 until the thread has voted."""

        reads = 0
        noted = None

        @property
        def _called(self):
            if index() == 0 and threading.current_thread().name.startswith("main") and self._have == 2 + AHEAD:
                self.reads += 1
                if self.reads == read:
                    found = self.noted
                    assert (found, self._begun) == (None, read)
                    looking.set()
                    assert voted.wait(20)
                    return found if read == 1 else self.noted
            return self.noted

        @_called.setter
        def _called(self, called):  # pyright: ignore[reportIncompatibleVariableOverride]
            self.noted = called

        def _agree(self, called):
            agreed = super()._agree(called)
            if index() == 0:
                voted.set()
            return agreed

    def act(number):
        agreed = (Slow if number == 0 else MultiProcess)(lambda event: None, lambda: None)
        assert agreed.begins(1, 1 + AHEAD, False)
        if number == 1:
            assert looking.wait(20)
            agreed.call(Ending("signal", "SIGTERM"))
        done = 1
        while agreed.begins(done + 1, done + 1 + AHEAD, False):
            done += 1
        agreed.close()
        return done

    assert simulated(2, act) == [read, read]


def test_a_loss_is_known_before_the_process_ends(simulated):
    """The one that cannot go on waits until all have left, or it may take the others' output with it."""
    left = []

    def act(number):
        made, heard = threading.Event(), threading.Event()

        def when_stuck(event):
            assert made.wait(20)
            if number == 0:
                left.append(event.raised.parts["found"])
                agreed.leave()
            heard.set()

        agreed = MultiProcess(when_stuck, lambda: None)
        made.set()
        if number == 1:
            agreed.lose(OSError("gone"))
        else:
            assert heard.wait(20)
        found = len(left)
        agreed.close()
        return found

    assert simulated(2, act) == [1, 1]
    assert left == ["OSError: gone"]


@pytest.mark.parametrize(
    ("first", "by"),
    [
        (Ending("steps", "steps", last=1), [0, 1]),
        (Ending("signal", "SIGTERM"), [0, 1]),
        (Ending("error", "error", error={"process": 0}), []),
    ],
)
def test_a_signal_is_heard_once_also_after_the_last_step(simulated, first, by):
    """It came during the last evaluation, when all had agreed on the end, and nothing was saved until that was over.

    All hear of the first signal alone, and of none after an error: they meet because of it.
    """
    heard = []

    def act(number):
        agreed = MultiProcess(lambda event: None, lambda: heard.append(number))
        agreed.begins(1, 1, True)
        agreed.call(first)
        agreed.call(Ending("signal", "SIGTERM"))
        agreed.worst("", "all have called")
        agreed.close()
        assert agreed.ending is not None
        return agreed.ending.kind

    assert simulated(2, act) == [first.kind] * 2
    assert sorted(heard) == by


def test_a_process_that_is_lost_votes_although_it_lacks_the_batches_of_the_last_step(simulated):
    """Another has called that step the last one, and the vote waits for its batches, which nobody fetches any more.

    What has kept the process from them is the reason of the end.
    """

    def act(number):
        made, heard = threading.Event(), threading.Event()

        def when_stuck(event):
            assert made.wait(20)
            if number == 0:
                agreed.leave()
            heard.set()

        agreed = MultiProcess(when_stuck, lambda: None)
        made.set()
        agreed.begins(1, 5 if number == 0 else 3, False)
        if number == 0:
            agreed.call(Ending("data", "data", last=5))
        else:
            with agreed._changed:
                assert agreed._changed.wait_for(lambda: agreed._called is not None, 20)
            agreed.lose(OSError("gone"))
        assert heard.wait(20)
        agreed.close()
        return agreed.ending.kind, agreed.last

    assert simulated(2, act) == [("lost", 3)] * 2


def test_the_position_is_that_of_the_last_batch_that_was_used():
    data = Batches([1, 2, 3, 4], epochs=1)
    ahead = Ahead(data, 2, 0)
    ahead.fill(1, 9)
    assert (ahead.last, data.get_state()["index"], ahead.get_state()["index"]) == (3, 3, 0)
    assert ahead.take() == 1
    assert ahead.get_state()["index"] == 1
    ahead.fill(2, 9)
    assert (ahead.last, ahead.ended) == (4, None)
    ahead.fill(3, 9)
    assert isinstance(ahead.ended, StopIteration)
    ahead.go_back()
    assert [*data] == [2, 3, 4]


def test_no_batch_after_the_last_step_is_fetched():
    data = Batches([1, 2, 3, 4], epochs=1)
    Ahead(data, 2, 0).fill(1, 2)
    assert data.get_state()["index"] == 2


def test_the_pace_waits_for_shared_arrays_alone():
    pace = Pace(2)
    assert not pace.wait({})
    pace.keep(jax.numpy.ones(()))
    assert not pace.wait({"array": jax.numpy.ones(())})


def test_a_run_of_several_processes_keeps_the_pace_of_its_results(simulated, monkeypatch):
    kept = {0: [], 1: []}

    class Noted(Pace):
        def keep(self, returned):
            kept[index()].append(returned)
            super().keep(returned)

    monkeypatch.setattr(run_of_fit, "Pace", Noted)
    first, second = simulated(
        2, lambda number: fit(lambda p, x: x, {"p": plait.Param(1.0)}, [1.0, 2.0], steps=5, show=False)
    )
    assert (first, first.reason) == (second, "steps")
    assert kept == {0: [1.0, 2.0, 1.0, 2.0, 1.0], 1: [1.0, 2.0, 1.0, 2.0, 1.0]}


def test_the_pace_does_not_wait_for_a_result_that_a_later_step_has_donated():
    """It may be an array of the model."""
    pace = Pace(1)
    donated = jax.numpy.ones(())
    donated.delete()
    for result in (donated, {"seen": donated}):
        pace.keep(result)
        assert not pace.wait({"array": jax.numpy.ones(())})
