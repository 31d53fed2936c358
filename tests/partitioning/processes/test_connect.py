"""Connecting processes: what the environment says, and errors. Real runs are in test_many_processes.py."""

import os
import socket
import subprocess
import sys

import jax
import pytest

import plait
from plait.errors import ProcessError
from plait.partitioning.processes import connect as processes


def test_alone_nothing_happens(monkeypatch):
    for name in (processes.COUNT, processes.NUMBER, processes.ADDRESS):
        monkeypatch.delenv(name, raising=False)
    assert plait.partitioning.connect_processes() == 1
    monkeypatch.setenv(processes.COUNT, "1")
    monkeypatch.setenv(processes.NUMBER, "0")
    monkeypatch.setenv(processes.ADDRESS, "127.0.0.1:1")
    assert plait.partitioning.connect_processes() == 1
    assert not jax.distributed.is_initialized()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({processes.COUNT: "2"}, "JAX_COORDINATOR_ADDRESS=not set, JAX_NUM_PROCESSES=2, JAX_PROCESS_ID=not set"),
        ({processes.NUMBER: "0"}, "JAX_COORDINATOR_ADDRESS=not set, JAX_NUM_PROCESSES=not set, JAX_PROCESS_ID=0"),
        ({processes.COUNT: "2", processes.NUMBER: "0"}, "JAX_COORDINATOR_ADDRESS=not set"),
        ({processes.ADDRESS: "a:1", processes.NUMBER: "0"}, "JAX_NUM_PROCESSES=not set"),
        ({processes.ADDRESS: "a:1", processes.COUNT: "2"}, "JAX_PROCESS_ID=not set"),
        (
            {processes.ADDRESS: "localhost", processes.COUNT: "2", processes.NUMBER: "0"},
            "JAX_COORDINATOR_ADDRESS=localhost",
        ),
        ({processes.ADDRESS: "a:1", processes.COUNT: "two", processes.NUMBER: "0"}, "JAX_NUM_PROCESSES=two"),
        ({processes.ADDRESS: "a:1", processes.COUNT: "2", processes.NUMBER: "2"}, "JAX_PROCESS_ID=2"),
    ],
)
def test_variables_that_contradict_themselves_are_told(found, says, monkeypatch):
    for name in (processes.ADDRESS, processes.COUNT, processes.NUMBER):
        monkeypatch.delenv(name, raising=False)
    for name, text in found.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ProcessError, match=f"(?s){says}.*plait launch"):
        plait.partitioning.connect_processes()


def test_connecting_too_late_is_told(monkeypatch):
    jax.devices()
    found = {processes.ADDRESS: "127.0.0.1:1", processes.COUNT: "2", processes.NUMBER: "1"}
    for name, text in found.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ProcessError, match=r"(?s)process 1 of 2.*before JAX uses a device.*first thing"):
        plait.partitioning.connect_processes()


def test_a_port_that_is_taken_is_told(monkeypatch):
    """JAX may crash there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name, text in {processes.ADDRESS: address, processes.COUNT: "2", processes.NUMBER: "0"}.items():
            monkeypatch.setenv(name, text)
        with pytest.raises(ProcessError, match=rf"(?s){address}: Address already in use.*a free port.*--port"):
            plait.partitioning.connect_processes()


@pytest.fixture
def calls(monkeypatch):
    """What JAX is asked to initialize; it does not, and says afterwards that there are two processes."""
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: asked.append(options))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for name in (processes.ADDRESS, processes.COUNT, processes.NUMBER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(processes.HOLDER, "")  # and it has again what it had
    return asked


PATIENCE = {
    "heartbeat_timeout_seconds": 20,
    "initialization_timeout": 300,
    "shutdown_timeout_seconds": 30,
}


@pytest.mark.parametrize("number", [0, 1])
def test_jax_is_told_what_the_variables_say(calls, monkeypatch, number):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for name, text in {processes.ADDRESS: address, processes.COUNT: "2", processes.NUMBER: str(number)}.items():
        monkeypatch.setenv(name, text)
    before = sys.excepthook
    assert plait.partitioning.connect_processes() == 2
    assert calls == [{"coordinator_address": address, "num_processes": 2, "process_id": number, **PATIENCE}]
    assert sys.excepthook is not before


def test_only_process_0_listens(calls, monkeypatch):
    """That its port is in use is as it should be for the others."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name, text in {processes.ADDRESS: address, processes.COUNT: "2", processes.NUMBER: "1"}.items():
            monkeypatch.setenv(name, text)
        assert plait.partitioning.connect_processes() == 2


@pytest.fixture
def child():
    """A process that runs, and one that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        yield running.pid, ended.pid
        running.kill()


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_process_that_one_of_a_run_has_started_does_not_take_its_place(calls, monkeypatch, child, is_cluster):
    """JAX would end the run: its process 1 has tried to connect with a different incarnation."""
    running, ended = child
    given = {processes.ADDRESS: "127.0.0.1:5999", processes.COUNT: "2", processes.NUMBER: "1"}
    for name, text in {} if is_cluster else given.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(processes, "in_cluster", lambda: is_cluster)
    assert plait.partitioning.connect_processes() == 2
    holder, space, place = os.environ[processes.HOLDER].partition(" ")
    assert (holder, space) == (str(os.getpid()), " ")
    assert place == ("" if is_cluster else " ".join(f"{name}={text}" for name, text in given.items()))
    monkeypatch.setenv(processes.HOLDER, f"{running} {place}")
    with pytest.raises(ProcessError) as caught:
        plait.partitioning.connect_processes()
    parts = caught.value.parts
    assert parts["at"] == f"process {os.getpid()} of the system"
    assert parts["found"] == f"process {running}, which is connected and runs{f', with {place}' * (not is_cluster)}"
    assert len(calls) == 1
    for other in (f"{running} {place}0", f"{ended} {place}", f"{os.getpid()} {place}"):  # elsewhere, over, by exec
        monkeypatch.setenv(processes.HOLDER, other)
        assert plait.partitioning.connect_processes() == 2
    assert len(calls) == 4


def test_where_jax_knows_the_cluster_it_is_told_nothing_but_how_long_to_wait(calls, monkeypatch):
    monkeypatch.setattr(processes, "in_cluster", lambda: True)
    given = {"heartbeat_timeout_seconds": 1, "initialization_timeout_seconds": 2, "shutdown_timeout_seconds": 3}
    assert plait.partitioning.connect_processes(**given) == 2
    assert calls == [dict(zip(PATIENCE, (1, 2, 3), strict=True))]


def test_processes_that_are_connected_stay_so(calls, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setenv(processes.COUNT, "not a number")
    assert (plait.partitioning.connect_processes(), calls) == (2, [])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            "must be called before any JAX calls\nmore",
            r"found +must be called before any .*\n.*\n +do +make connect",
        ),
        ("deadline exceeded\nmore", r"found +deadline exceeded\n +expected +all processes.*\n +do +look at the other"),
    ],
)
def test_what_keeps_jax_from_connecting_is_told(calls, monkeypatch, message, says):
    def fail(**options):
        raise RuntimeError(message)

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    monkeypatch.setattr(processes, "in_cluster", lambda: True)
    before = sys.excepthook
    with pytest.raises(ProcessError, match=says):
        plait.partitioning.connect_processes()
    assert sys.excepthook is before


@pytest.mark.parametrize(
    "text",
    [
        "Gloo context initialization failed",
        "Read error: Connection reset by peer",
        "Connection closed by peer",
        "The task has missed too many heartbeats",
        "The coordination service has stopped",
        "UNAVAILABLE: another task died",
    ],
)
def test_each_way_in_which_jax_reports_a_lost_process_is_known(text):
    assert processes.is_loss(jax.errors.JaxRuntimeError(text))


def test_the_loss_of_a_process_is_told_apart_from_other_errors():
    lost = jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Read error: Connection reset by peer\nmore")
    assert processes.is_loss(lost)
    assert not processes.is_loss(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))
    assert not processes.is_loss(ValueError("connection reset"))
    message = str(processes.lost_process(lost))
    assert "process 0 of 1" in message
    assert "Connection reset by peer" in message
    assert "more" not in message.partition("expected")[0]


def test_a_process_that_is_late_is_not_said_to_have_ended():
    """JAX gives up after 30 s on a CPU, for example while another process still compiles."""
    late = jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Gloo context initialization failed: DEADLINE_EXCEEDED: ...")
    assert processes.is_loss(late)
    assert str(processes.lost_process(late)).startswith("another process of this run has ended or is late, and")


@pytest.mark.slow
def test_an_error_ends_the_process_at_once_after_what_python_says():
    program = (
        "import atexit; atexit.register(lambda: print('waited'))\n"
        "from plait.partitioning.processes import connect; connect._end_at_once_on_errors(); print('said')\n"
        "import jax; raise jax.errors.JaxRuntimeError('Gloo: Connection closed by peer')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "said\n"
    assert "JaxRuntimeError: Gloo" in done.stderr
    python, _, plait_says = done.stderr.partition("plait: another process of this run has ended")
    assert "Traceback" in python
    assert "found     Gloo: Connection closed by peer" in plait_says


class Unread:
    """A pipe whose reader is gone."""

    def write(self, text=""):
        raise BrokenPipeError

    flush = write


@pytest.mark.parametrize("error", [OSError("gone"), jax.errors.JaxRuntimeError("Gloo: Connection closed by peer")])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_process_that_ends_at_once_finishes_the_checkpoint_that_it_writes(monkeypatch, error, is_read):
    """``os._exit`` would cut it off, and so would an error of the output when what has started the process is gone."""
    from plait.checkpoint import writer

    assert writer._finish_all in processes.BEFORE_THE_END
    done = []

    def leave(status):
        done.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(sys, "excepthook", lambda *_: done.append("printed"))
    monkeypatch.setattr(processes, "BEFORE_THE_END", [lambda: done.append("written")])
    monkeypatch.setattr(os, "_exit", leave)
    processes._end_at_once_on_errors()
    if not is_read:
        monkeypatch.setattr(sys, "stdout", Unread())
        monkeypatch.setattr(sys, "stderr", Unread())
    with pytest.raises(SystemExit):
        processes.end_at_once(error)
    assert done == ["printed", "written", 1]
