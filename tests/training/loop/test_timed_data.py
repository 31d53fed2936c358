"""Data that may hang: its items, its position, and the thread that reads them."""

import gc
import signal
import threading
import time

import pytest

from plait.checkpoint.positions import has_position
from plait.errors import DataError
from plait.training import Batches
from plait.training.loop import timed_data
from plait.training.loop.timed_data import timed


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "plait waits for data"]


def gone(thread, seconds=10):
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize("data", [iter("abc"), Batches("abc", epochs=1)], ids=["an iterator", "with a position"])
def test_the_items_are_those_of_the_data(data):
    assert list(timed(data, 10)) == ["a", "b", "c"]


def test_only_data_with_a_position_has_one():
    assert not has_position(timed(iter("abc"), 10))
    data = timed(Batches("abc", epochs=1), 10)
    assert has_position(data)
    assert next(data) == "a"
    position = data.get_state()
    assert list(data) == ["b", "c"]
    data.set_state(position)
    assert data.get_state() == position
    assert next(data) == "b"


def test_a_signal_that_is_handled_for_longer_than_the_timeout_does_not_lengthen_it():
    """Up to Python 3.12, ``SimpleQueue.get`` then waits forever; so it does in a process that was stopped."""
    freed = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.5))
    threading.Timer(10, freed.set).start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(DataError, match="no batch arrived in time"):
            next(timed(iter(freed.wait, None), 0.2))
    finally:
        signal.signal(signal.SIGALRM, before)
        freed.set()


def late_by(freed):
    """The second item arrives when it is freed."""
    for number in range(4):
        if number == 1:
            freed.wait()
        yield number


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: map(int, data)], ids=["a generator", "a map"])
@pytest.mark.parametrize("limit", [10, None])
def test_an_item_that_arrives_when_nobody_waits_is_the_first_of_the_next(wrap, limit):
    """Neither has a position, and a map has no weak references."""
    before, freed = threads(), threading.Event()
    data = wrap(late_by(freed))
    first = timed(data, 0.1)
    assert next(first) == 0
    with pytest.raises(DataError):
        next(first)
    (thread,) = set(threads()) - set(before)
    del first
    freed.set()
    gc.collect()
    assert gone(thread)
    assert list(timed(data, limit)) == [1, 2, 3]
    assert timed(data, None) is data


def test_what_waits_for_nobody_is_forgotten_with_the_data():
    before, freed = threads(), threading.Event()
    data = late_by(freed)
    waiting = timed(data, 0.1)
    next(waiting)
    with pytest.raises(DataError):
        next(waiting)
    known = id(data)
    assert known in timed_data._AWAITED
    freed.set()
    (thread,) = set(threads()) - set(before)
    del waiting, data
    assert gone(thread)
    gc.collect()
    assert known not in timed_data._AWAITED


@pytest.mark.parametrize("data", [iter("abc"), Batches("abc")], ids=["an iterator", "with a position"])
def test_the_thread_ends_with_the_iterator(data):
    """It used to keep the data, and itself, until the end of the program. (issue O)"""
    before = threads()
    iterator = timed(data, 10)
    assert next(iterator) == "a"
    (thread,) = set(threads()) - set(before)
    gc.disable()
    try:
        del iterator
        assert gone(thread)
    finally:
        gc.enable()
