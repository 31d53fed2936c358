"""What a recording hears of the calls of its thread. (rule W4)"""

import datetime
import re
import sys
import threading
import time

import jax.numpy as jnp
import pytest

import plait
from plait.errors import ProgramCacheWarning
from plait.warm.descriptions import Describer
from plait.warm.reads import Recording

CLOCK = "time.time gives a different result in each call"
WATCH = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")


class Subclass(datetime.datetime):
    """Its clock is that of the class above."""


class Hashed:
    """What a key of a dictionary may do differs from what a program may do."""

    def __hash__(self):
        return hash(("a", id(self)))


def ask(functions):
    return [function() for function in functions]


def recorded(f, *args):
    with Recording(Describer()) as recording:
        f(*args)
    return recording.reasons


def test_a_place_that_calls_something_else_first():
    assert recorded(ask, [list, dict, list, time.time]) == [CLOCK]


def test_each_recording_hears_what_an_earlier_one_knew():
    for _ in range(3):
        assert recorded(ask, [list]) == []
        assert recorded(ask, [time.time]) == [CLOCK]


def test_a_recording_that_is_entered_again_goes_on():
    recording = Recording(Describer())
    with recording:
        ask([list])
    ask([time.time])
    assert recording.reasons == []
    with recording:
        ask([time.time])
    assert recording.reasons == [CLOCK]


def test_equal_code_of_two_functions_is_heard():
    made = [{"__name__": __name__, "time": time} for _ in range(2)]
    for scope in made:
        exec("def ask(asks): return time.time() if asks else None", scope)
    assert made[0]["ask"].__code__ == made[1]["ask"].__code__
    assert recorded(lambda: (made[0]["ask"](False), made[1]["ask"](True)))[1:] == [CLOCK]


def test_methods_of_types_in_c_are_heard():
    """CPython ends the process if one of them is bound without its type."""
    assert recorded(lambda: re.compile("a").sub("b", "a" * 3)) == []


def test_generators_that_had_begun_are_heard():
    def numbers():
        while True:
            yield time.time()

    given = numbers()
    next(given)
    assert recorded(lambda: next(given)) == [CLOCK]


def test_errors_that_are_thrown_into_generators_are_heard():
    def waiting():
        try:
            yield
        except ValueError:
            yield time.time()

    given = waiting()
    next(given)
    assert recorded(lambda: given.throw(ValueError())) == [CLOCK]


def test_each_thread_hears_its_own_calls():
    begun, ended = threading.Barrier(2), threading.Barrier(2)
    found = {}

    def run(name, function):
        with Recording(Describer()) as recording:
            begun.wait(60)
            ask([list, function, list])
            ended.wait(60)
        found[name] = CLOCK in recording.reasons

    for _ in range(5):
        threads = [threading.Thread(target=run, args=given) for given in (("asks", time.time), ("does not ask", dict))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == {"asks": True, "does not ask": False}


@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")
@pytest.mark.parametrize("name", ["now", "utcnow", "today"])
def test_the_clock_of_a_subclass_counts(name):
    (reason,) = recorded(lambda: getattr(Subclass, name)())
    assert re.fullmatch(rf"\S+\.{name} gives a different result in each call", reason)


OF_THE_PROCESS = {
    "builtins.hash": lambda: hash("a"),
    "builtins.id": lambda: id("a"),
    "_thread.get_ident": lambda: threading.get_ident(),
    "_thread.get_native_id": lambda: threading.get_native_id(),
}


@pytest.mark.parametrize("name", OF_THE_PROCESS)
def test_what_is_of_the_process_counts(name):
    assert recorded(OF_THE_PROCESS[name]) == [f"{name} gives a different result in each process"]


def test_what_is_of_the_process_may_be_a_key():
    assert recorded(lambda: {Hashed(): 1}) == []


def test_a_profiler_that_is_started_counts():
    def start():
        sys.setprofile(lambda *_: None)

    try:
        assert recorded(start)[-1] == "a profiler was started or stopped while the function was traced"
    finally:
        sys.setprofile(None)


@WATCH
def test_nothing_is_watched_afterwards():
    recorded(ask, [list])
    assert "plait.warm.calls" not in map(sys.monitoring.get_tool, range(6))


@WATCH
def test_without_a_number_for_tools_nothing_is_stored(tmp_path):
    free = [number for number in range(6) if sys.monitoring.get_tool(number) is None]
    for number in free:
        sys.monitoring.use_tool_id(number, "another")
    try:
        with pytest.warns(ProgramCacheWarning, match=r"other tools use all numbers of sys\.monitoring"):
            assert plait.jit(lambda x: 2 * x, cache=tmp_path)(jnp.ones(())) == 2.0
    finally:
        for number in free:
            sys.monitoring.free_tool_id(number)
    assert list(tmp_path.glob("*.program")) == []
