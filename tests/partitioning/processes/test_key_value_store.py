"""Short texts between processes, with a client of JAX's coordination service that is none. Real ones: tests/faults."""

import json
import subprocess
import sys
import tempfile
import warnings

import jax
import pytest

from plait.errors import ProcessError, ProcessWarning
from plait.partitioning.processes import key_value_store


class Client:
    """What JAX 0.10 and 0.12 do, with their errors."""

    def __init__(self):
        self.texts, self.numbers, self.asked = {}, {}, 0

    def key_value_set(self, key, text):
        if key in self.texts:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
        if key == "lost":
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")
        self.texts[key] = text

    def blocking_key_value_get(self, key, milliseconds):
        self.asked += 1
        if key == "lost":
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")
        if key not in self.texts or self.asked < 3:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
        return self.texts[key]

    def key_value_dir_get(self, key):
        return [(name, text) for name, text in self.texts.items() if name.startswith(key)]

    def key_value_increment(self, key, by):
        self.numbers[key] = self.numbers.get(key, 0) + by
        return self.numbers[key]

    def wait_at_barrier(self, name, milliseconds):
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out")


@pytest.fixture(autouse=True)
def client(monkeypatch):
    found = Client()
    monkeypatch.setattr(key_value_store, "coordinator", lambda: found)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    return found


def test_the_first_to_post_wins():
    assert key_value_store.put_once("a", "first")
    assert not key_value_store.put_once("a", "second")
    assert key_value_store.entries_under("a") == []
    assert key_value_store.await_entry("a") == "first"


def test_entries_are_found_by_the_beginning_of_their_keys():
    for key in ("votes/0", "votes/1", "votes", "votes-2/0"):
        key_value_store.put_once(key, key)
    assert key_value_store.entries_under("votes") == ["votes/0", "votes/1"]


@pytest.mark.slow
def test_what_nobody_will_ask_for_is_removed():
    """With JAX's own coordinator, in a process of its own."""
    program = (
        "import jax, socket\n"
        "from plait.partitioning.processes.key_value_store import entries_under, is_last, put_once, remove\n"
        "with socket.socket() as free: free.bind(('127.0.0.1', 0)); port = free.getsockname()[1]\n"
        "jax.distributed.initialize(f'127.0.0.1:{port}', 1, 0)\n"
        "for key in ('a/1/x', 'a/1/y', 'a/10'): put_once(key, key)\n"
        "is_last('a/1/count'), remove('a/1'), remove('a/2')\n"
        "print(entries_under('a'), is_last('a/1/count'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "['a/10'] True\n", done.stderr


def test_nobody_waits_longer_than_asked():
    assert key_value_store.await_entry("never", 0.01) is None


def test_the_last_to_come_knows_it():
    assert [key_value_store.is_last("here") for _ in range(3)] == [False, True, False]


def test_a_meeting_to_which_not_all_come_ends():
    key_value_store.barrier("end", 0.1)


@pytest.mark.parametrize(
    "act", [lambda: key_value_store.put_once("lost", ""), lambda: key_value_store.await_entry("lost")]
)
def test_a_coordinator_that_is_gone_is_an_error(act):
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"):
        act()


def test_a_process_that_is_not_connected_is_told(monkeypatch):
    monkeypatch.setattr(key_value_store, "coordinator", lambda: None)
    with pytest.raises(ProcessError, match=r"not connected(?s:.*)connect_processes"):
        key_value_store.put_once("a", "")


@pytest.fixture
def at_once(monkeypatch):
    """Who waits says so at once, and has not said it yet."""
    monkeypatch.setattr(key_value_store, "_LATE", 0.0)
    key_value_store._warn_of.cache_clear()
    yield
    key_value_store._warn_of.cache_clear()


def test_who_waits_for_a_process_that_has_not_come_says_so_once(at_once):
    for key in ("save/1", "save/2"):
        key_value_store.arrive(key)
        key_value_store.put_once(f"{key}/end", "done")
    with pytest.warns(ProcessWarning, match=r"at +process 0\n +found +nothing of process 1 for 0 s"):
        assert key_value_store.await_outcome("save/1", "end") == "done"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert key_value_store.await_outcome("save/2", "end") == "done"


def test_who_waits_for_processes_that_have_come_says_nothing(at_once):
    key_value_store.put_once("save/1/given/1", json.dumps([1, "there"]))
    assert not key_value_store.is_last("save/1/all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert key_value_store.gather("save/1", "here") == ["here", "there"]


@pytest.mark.slow
def test_the_warning_names_a_call_that_one_process_makes_alone():
    """With JAX's own coordinator, after a second instead of a minute. Its advice ends the wait."""
    program = (
        "import jax, sys, time\n"
        "from plait.partitioning import connect_processes\nfrom plait.partitioning.processes import key_value_store\n"
        "connect_processes()\n"
        "import plait\n"
        "key_value_store._LATE = 1.0\n"
        "if jax.process_index() == 1: time.sleep(4)\n"
        "plait.checkpoint.save(sys.argv[1], {'w': jax.numpy.zeros(2)})\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "plait.cli.main",
            "launch",
            "--processes=2",
            "--",
            sys.executable,
            "-c",
            program,
        ]
        done = subprocess.run([*command, f"{folder}/w"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "ProcessWarning" in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("[0]")
    assert "nothing of process 1 for 1 s" in done.stderr
