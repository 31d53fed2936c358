"""Batches put on the devices ahead of the step."""

import collections
import itertools
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from plait.training import Batches, prefetch

DATA = [{"x": np.full((8, 2), i, np.float32)} for i in range(5)]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_the_batches_and_their_order_stay(size):
    """FD1"""
    found = list(prefetch(iter(DATA), size))
    assert [float(batch["x"][0, 0]) for batch in found] == [0, 1, 2, 3, 4]
    assert all(isinstance(batch["x"], jax.Array) for batch in found)


def test_the_next_batches_are_asked_for_before_the_step():
    """FD4"""
    asked = [threading.Event() for _ in DATA]
    ahead = prefetch((asked[i].set() or batch for i, batch in enumerate(DATA)), 2)
    next(ahead)
    assert all(each.wait(60) for each in asked[:3])
    assert not any(each.is_set() for each in asked[3:])


def test_a_run_resumes_after_the_batches_that_it_took():
    """FD3"""
    ahead = prefetch(Batches(DATA, epochs=2), 3)
    assert ahead.get_state() == {"epoch": 0, "index": 0}
    for _ in itertools.repeat(None, 4):
        next(ahead)
    state, rest = ahead.get_state(), [float(batch["x"][0, 0]) for batch in ahead]
    assert state == {"epoch": 0, "index": 4}
    again = prefetch(Batches(DATA, epochs=2), 2)
    next(again)
    again.set_state(state)
    assert [float(batch["x"][0, 0]) for batch in again] == rest == [4, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "kind", [lambda i: {"i": i}, lambda i: i, lambda i: (i, "shard")], ids=["dict", "array", "tuple"]
)
def test_a_position_may_be_a_numpy_array_that_is_counted_in_place(kind):
    """FD3"""

    class Data:
        def __init__(self):
            self.i = np.zeros(2, int)

        def __iter__(self):
            return self

        def __next__(self):
            self.i += 1
            return np.ones(2) * self.i[0]

        def get_state(self):
            return kind(self.i)

        def set_state(self, state):
            self.i[...] = state["i"] if isinstance(state, dict) else state[0] if isinstance(state, tuple) else state

    ahead = prefetch(Data())
    next(ahead)
    state = ahead.get_state()
    ahead.set_state(state)
    assert float(next(ahead)[0]) == 2
    ahead.set_state(state)
    assert float(next(ahead)[0]) == 2


def test_an_error_comes_after_the_batches_before_it():
    """FD5"""

    def failing():
        yield DATA[0]
        yield DATA[1]
        raise OSError("the disk is gone")

    ahead = prefetch(failing(), 4)
    assert [float(next(ahead)["x"][0, 0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_no_batch_is_lost_after_an_error_that_passes():
    """FD5"""

    class Flaky:
        """A source that fails once, and goes on where it was."""

        def __init__(self):
            self.place, self.failed = 0, False

        def __iter__(self):
            return self

        def __next__(self):
            if self.place == 2 and not self.failed:
                self.failed = True
                raise OSError("try again")
            if self.place == 5:
                raise StopIteration
            self.place += 1
            return DATA[self.place - 1]

    ahead, found = prefetch(Flaky(), 3), []
    while len(found) < 6:
        try:
            found.append(float(next(ahead)["x"][0, 0]))
        except OSError:
            found.append("again")
    assert found == [0, 1, "again", 2, 3, 4]


def test_no_batch_is_lost_to_a_signal_as_it_is_taken():
    """The position was noted after the batch was taken, so going back to the one before it did nothing."""

    class Interrupted(BaseException):
        pass

    class Interrupting(collections.deque):
        def popleft(self):
            super().popleft()
            raise Interrupted

    batches = prefetch(Batches(list(range(9)), epochs=1), 3)
    assert int(next(batches)) == 0
    before, held = batches.get_state(), batches._held
    batches._held = Interrupting(held)
    with pytest.raises(Interrupted):
        next(batches)
    batches._held = collections.deque(batches._held)
    batches.set_state(before)
    assert [int(each) for each in batches] == list(range(1, 9))


def test_going_back_does_not_wait_for_data_that_hangs():
    """A signal used to end a run of several processes only when the data went on."""
    goes_on = threading.Event()

    def epoch(number):
        yield from DATA[:3]
        assert goes_on.wait(60)
        yield from DATA[3:]

    ahead = prefetch(Batches(epoch, epochs=1), 2)
    next(ahead)
    state = ahead.get_state()
    next(ahead)
    next(ahead)
    ahead.set_state(state)
    assert not goes_on.is_set()
    assert ahead.get_state() == state
    goes_on.set()
    assert [float(batch["x"][0, 0]) for batch in ahead] == [1, 2, 3, 4]


HANGS = """
import threading, numpy as np
from plait.training import prefetch

def data():
    yield np.ones(2)
    threading.Event().wait()

ahead = prefetch(data())
print(next(ahead).sum(), flush=True)
raise SystemExit(143)
"""


@pytest.mark.slow
def test_a_program_that_ends_does_not_wait_for_data_that_hangs():
    """It used to wait without end, also after ``fit`` had raised that no batch arrived in time."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("2.0\n", 143), done.stderr
