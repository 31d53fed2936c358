"""Programs that the last process used are read before they are needed, and only those that a call needs are used.
(rule W17)"""

import dataclasses
import os
import threading
import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import pytest

import plait
from plait._compat import traced_afresh
from plait.errors import ProgramCacheWarning
from plait.warm import programs, switch
from plait.warm.ahead import Ahead
from plait.warm.descriptions import Describer
from plait.warm.folder import Folder
from plait.warm.forms import Forms
from plait.warm.logbook import Logbook
from plait.warm.reads import Recording

from .test_switch import switched as switched

RATE = 2


def scaled(x):
    return x * RATE


def compile_something():
    """What JAX compiles first shows that it has its devices."""
    return jax.jit(lambda x: x + len(compile_something.__name__))(jnp.ones(3))


@pytest.fixture
def again(switched):
    """A process has used a program, and this one begins; the program's file."""
    plait.jit(scaled)(jnp.ones(3))
    plait.cache(None)
    (log,) = (switched / "log").iterdir()
    log.rename(log.with_name(f"2026-01-01 00.00.00-{os.getpid()}.jsonl"))  # another container, with the same numbers
    plait.cache(switched)
    (file,) = switched.glob("*.program")
    return file


def is_not_read_again(monkeypatch):
    def read(*_):
        raise AssertionError("it was read ahead")

    monkeypatch.setattr(programs, "read_binary", read)


def executable_of(file):
    ((_, header),) = Folder(file.parent).headers()
    return dataclasses.replace(Forms([]).read(header["executable"]), binary=file.read_bytes().split(b"\n", 2)[2])


def test_w17_what_the_last_process_used_is_read_when_something_is_compiled(again, monkeypatch):
    is_not_read_again(monkeypatch)
    compile_something()
    assert plait.jit(scaled)(jnp.ones(3)).tolist() == [2, 2, 2]


def test_w17_threads_that_compile_at_once_read_once(again, monkeypatch):
    made, look = [], Logbook.last_used

    def last_used(log):
        time.sleep(0.1)
        return look(log)

    monkeypatch.setattr(Logbook, "last_used", last_used)
    monkeypatch.setattr("plait.warm.ahead.Ahead", lambda *given: made.append(Ahead(*given)) or made[-1])
    threads = [threading.Thread(target=compile_something) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_w17_where_no_thread_can_start_nothing_is_read_ahead(again, monkeypatch):
    """As in a function that ``atexit`` calls, since Python 3.12."""

    def start(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    compile_something()
    assert plait.jit(scaled)(jnp.ones(3)).tolist() == [2, 2, 2]


def test_w17_without_a_compilation_nothing_is_read_ahead(again, monkeypatch):
    is_not_read_again(monkeypatch)
    with pytest.raises(AssertionError, match="read ahead"):
        plait.jit(scaled)(jnp.ones(3))


def test_w17_a_program_that_no_longer_fits_is_not_used(again, monkeypatch):
    compile_something()
    monkeypatch.setitem(globals(), "RATE", 5)
    assert plait.jit(scaled)(jnp.ones(3)).tolist() == [5, 5, 5]


def test_w17_a_file_that_was_replaced_is_read_again(again):
    right = executable_of(again)
    other = dataclasses.replace(right, binary=right.binary + b" ")
    for given, is_taken in ((other, False), (right, True)):
        ahead = Ahead(Folder(again.parent), [again.name])
        ahead._thread.join()
        assert (ahead.taken(again.name, given) is not None) is is_taken
        assert ahead.taken(again.name, given) is None  # once
        ahead.drop()


def test_w17_a_program_for_another_environment_is_not_read(again, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    ahead = Ahead(Folder(again.parent), [again.name])
    ahead._thread.join()
    assert ahead.taken(again.name, executable_of(again)) is None


def test_w17_a_damaged_file_is_reported_by_the_call_that_needs_it(again):
    again.write_bytes(again.read_bytes()[:-1])
    compile_something()
    with pytest.warns(ProgramCacheWarning, match="rejected"):
        assert plait.jit(scaled)(jnp.ones(3)).tolist() == [2, 2, 2]


def test_w17_a_recorded_trace_starts_no_thread(again):
    with traced_afresh(), Recording(Describer()):
        switch._count("/jax/compilation_cache/compile_requests_use_cache")
    assert switch._there is not None
    assert switch._there._ahead is None


def test_w17_a_call_may_take_a_program_while_all_are_dropped(again):
    ahead = Ahead(Folder(again.parent), [])

    class TakingAnother(Future):
        def cancel(self):
            ahead.taken("other", None)
            return super().cancel()

    ahead._readings = {"one": TakingAnother(), "other": Future()}
    ahead.drop()
    assert not ahead._readings


def test_w17_what_was_not_needed_is_let_go(again):
    compile_something()
    assert switch._there is not None
    ahead = switch._there._ahead
    plait.cache(None)
    assert not ahead._thread.is_alive()
    assert not ahead._readings
