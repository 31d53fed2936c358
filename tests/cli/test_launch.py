"""plait launch: several processes of one run."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plait.cli import launch, main as cli
from tests.environment import environment
from tests.sampling import slow_but

LIMIT = 300  # seconds, on a busy machine; what is waited for would sleep for 600
# Signals mean what they mean in a terminal, also where the tests run in the background or under nohup.
LISTENING = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def start(program, *options, processes=2, patience=launch.PATIENCE, before=()):
    """The command in a process of its own, which can be interrupted."""
    setting = f"from plait.cli import launch, main; launch.PATIENCE = {patience}"
    main = f"import sys; {setting}; sys.exit(main.main(sys.argv[1:]))"
    command = [sys.executable, "-c", main, "launch", f"--processes={processes}", *options, "--"]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENING, *command, *before, sys.executable, "-c", program],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_files(folder, count):
    """Until there are so many in it, each made by a process."""
    deadline = time.monotonic() + LIMIT
    while len(os.listdir(folder)) < count and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture
def launched(capfd):
    """The command in this process: its status, output and errors."""

    def run(program, *options):
        status = cli.main(["launch", "--processes=2", *options, "--", sys.executable, "-c", program])
        return (status, *capfd.readouterr())

    return run


def is_running(pid):
    """Whether a process is there and not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SHOW = """
import os
print(*(os.environ[name] for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "XLA_FLAGS")))
"""


def test_each_process_hears_who_it_is_and_its_lines_have_its_number():
    output, errors = start(SHOW, "--devices=3", "--port=5999").communicate(timeout=LIMIT)
    lines = sorted(output.splitlines())
    assert [line.partition(" --")[0] for line in lines] == [f"[{n}] 127.0.0.1:5999 2 {n}" for n in range(2)]
    assert all("--xla_force_host_platform_device_count=3" in line for line in lines)
    assert all("device_count=8" not in line for line in lines)  # the tests' own
    assert errors == ""


def test_without_a_port_a_free_one_is_taken(launched):
    _, output, _ = launched("import os; print(os.environ['JAX_COORDINATOR_ADDRESS'])")
    first, second = (line.split(" ")[1] for line in output.splitlines())
    assert first == second
    assert int(first.rpartition(":")[2]) > 0


@pytest.mark.parametrize(
    ("fails", "status", "says"),
    [
        ("sys.exit(3)", 3, "exited with status 3"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 40)", 168, "was killed by signal 40"),  # a real-time signal has no name
    ],
)
def test_when_one_fails_the_others_are_ended(launched, fails, status, says):
    program = f"import os, sys, time\nif os.environ['JAX_PROCESS_ID'] == '1': {fails}\ntime.sleep(600)"
    begun = time.monotonic()
    found, _, errors = launched(program)
    assert found == status
    assert f"plait: process 1 of 2 {says}; the others are terminated" in errors
    assert time.monotonic() - begun < LIMIT


@pytest.mark.slow
def test_who_had_gone_before_is_told(launched):
    program = (
        "import os, sys, time\nif os.environ['JAX_PROCESS_ID'] == '1': sys.exit()\n"
        "time.sleep(1); print('the reason', file=sys.stderr); sys.exit(4)"
    )
    status, _, errors = launched(program)
    assert status == 4
    assert "plait: process 0 of 2 exited with status 4, after process 1 had exited with status 0\n" in errors


def test_a_port_that_is_taken_starts_nothing(launched, tmp_path):
    """If a run has it, JAX would end that run."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output, errors = launched(f"open({str(tmp_path / 'started')!r}, 'w')", f"--port={port}")
    assert (status, output) == (2, "")
    assert f"127.0.0.1:{port}: Address already in use" in errors
    assert list(tmp_path.iterdir()) == []


WITH_CHILDREN = """
import multiprocessing, os, subprocess, sys
import jax, jax.numpy as jnp
import plait

def fail(_):
    plait.partitioning.connect_processes()

if __name__ == "__main__":
    plait.partitioning.connect_processes()
    mesh = jax.make_mesh((2,), ("d",))
    total = jax.jit(jnp.sum, out_shardings=jax.NamedSharding(mesh, jax.P()))
    numbers = jax.make_array_from_callback((2,), jax.NamedSharding(mesh, jax.P("d")), lambda _: jnp.ones(1))
    if jax.process_index() == int(sys.argv[1]):
        program = "import plait; plait.partitioning.connect_processes()"
        child = subprocess.run([sys.executable, "-c", program], stderr=-1, text=True)
        assert child.returncode == 1 and "would take its place" in child.stderr, child.stderr
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                pool.map(fail, [0])
            except plait.errors.ProcessError:
                print("told")
        launch = [sys.executable, "-m", "plait.cli.main", "launch", "--processes=2", "--devices=1", "--"]
        assert subprocess.run([*launch, sys.executable, "-c", program]).returncode == 0
    print(int(total(numbers)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_what_a_process_has_started_does_not_end_the_run(tmp_path, process):
    """Workers that import the program, and programs that connect, had its place, and JAX ended the run."""
    (tmp_path / "program.py").write_text(WITH_CHILDREN)
    command = [sys.executable, "-m", "plait.cli.main", "launch", "--processes=2", "--devices=1", "--"]
    done = subprocess.run(
        [*command, sys.executable, tmp_path / "program.py", str(process)],
        env=environment(http_proxy="http://127.0.0.1:9"),  # nobody listens there
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {f"[{process}] told", "[0] 2", "[1] 2"} <= {*done.stdout.splitlines()}


def test_no_proxy_of_the_user_stays():
    options = launch.Options(["program"], 2)
    names = ("no_proxy", "no_grpc_proxy")
    assert "no_grpc_proxy" not in launch.environment({"no_proxy": "a"}, options, 0, "127.0.0.1:1")  # JAX warns of any
    for given, found in {("a,b", None): "a,b,127.0.0.1", ("a", "c"): "c,127.0.0.1", (None, None): "127.0.0.1"}.items():
        base = {name: text for name, text in zip(names, given, strict=True) if text} | {"https_proxy": "b"}
        assert launch.environment(base, options, 0, "127.0.0.1:1")["no_grpc_proxy"] == found


def test_emulated_devices_have_two_threads_each_unless_the_user_says_otherwise():
    options = launch.Options(["program"], 2, devices=64)
    for base, threads in (({}, "128"), ({"NPROC": "3"}, "3")):
        assert launch.environment(base, options, 0, "127.0.0.1:1")["NPROC"] == threads


@pytest.mark.slow
def test_one_that_does_not_listen_is_ended_all_the_same(monkeypatch, capfd):
    monkeypatch.setattr(launch, "PATIENCE", 0.5)
    program = (
        "import os, signal, sys, time\nif os.environ['JAX_PROCESS_ID'] == '0': time.sleep(0.5); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    )
    assert launch.run(launch.Options([sys.executable, "-c", program], 2)) == 1
    assert "process 0 of 2 exited with status 1" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("request_to_end", slow_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_an_interruption_ends_all(request_to_end, tmp_path):
    program = f"import os, time\nopen({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    running = start(program)
    wait_for_files(tmp_path, 2)
    running.send_signal(request_to_end)
    _, errors = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + request_to_end
    assert "plait: interrupted" in errors
    assert [pid for pid in os.listdir(tmp_path) if is_running(pid)] == []


@pytest.mark.slow
def test_an_interruption_that_is_handled_late_is_heard(monkeypatch):
    """Up to Python 3.12, ``SimpleQueue.get`` waits forever if a signal is handled after its timeout has passed.

    So a launcher that was stopped, and got SIGTERM meanwhile, waited for its processes without end.
    """

    @contextlib.contextmanager
    def requests_to_end():
        requests = []

        def note(number, _):
            time.sleep(0.3)
            requests.append(number)

        before = signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            yield requests
        finally:
            signal.signal(signal.SIGALRM, before)

    monkeypatch.setattr(launch, "_requests_to_end", requests_to_end)
    begun = time.monotonic()
    status = launch.run(launch.Options([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 2))
    assert status == 128 + signal.SIGALRM
    assert time.monotonic() - begun < 30


def test_one_that_was_killed_is_told_before_those_that_lost_it(tmp_path, launched):
    """On a busy machine the system may take longer to end it than the others take to fail."""
    program = (
        "import os, signal, sys, time\n"
        f"flag = {str(tmp_path / 'flag')!r}\n"
        "if os.environ['JAX_PROCESS_ID'] == '0':\n    open(flag, 'w').close(); sys.exit(1)\n"
        "while not os.path.exists(flag):\n    time.sleep(0.001)\n"
        "time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)"
    )
    status, _, errors = launched(program)
    assert status == 128 + signal.SIGKILL
    assert "process 1 of 2 was killed by signal 9" in errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells who handles a signal")
def test_what_a_process_has_started_lives_until_it_has_saved(tmp_path):
    """Such as the processes that load its data: the loader raises when they die, which ended the last save."""
    program = (
        "import os, signal, subprocess, sys, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "worker = subprocess.Popen(['sleep', '600'])\n"
        "def save(*_):\n"
        "    time.sleep(0.3)\n"
        "    if worker.poll() is None: open(place + f'.saved.{worker.pid}', 'w').close()\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); open(place, 'w').close(); time.sleep(600)"
    )
    running = start(program)
    wait_for_files(tmp_path, 2)
    begun = time.monotonic()
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + signal.SIGTERM
    saved = [path.suffix[1:] for path in tmp_path.glob("*.saved.*")]
    assert len(saved) == 2
    assert [pid for pid in saved if is_running(pid)] == []
    assert time.monotonic() - begun < launch.GRACE


@pytest.mark.slow
def test_a_shell_that_only_notes_the_signal_does_not_keep_it_from_the_program(tmp_path):
    """Bash runs a trap when the program that it waits for has ended: that was killed after the grace period."""
    program = (
        "import os, signal, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n"
        "    open(place + '.saved', 'w').close(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); open(place, 'w').close(); time.sleep(600)"
    )
    running = start(program, patience=0.3, before=["bash", "-c", 'trap "echo noted" TERM; "$@"; exit $?', "shell"])
    wait_for_files(tmp_path, 2)
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=LIMIT)
    assert output.count("noted") == 2
    assert sorted(os.listdir(tmp_path)) == ["0", "0.saved", "1", "1.saved"]


@pytest.mark.slow
@pytest.mark.parametrize("again", slow_but([signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]))
def test_a_request_that_comes_twice_is_one(tmp_path, again):
    """A closed terminal sends SIGHUP by the shell and by the kernel; ``timeout`` signals a process and its group."""
    program = (
        "import os, signal, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n"
        "    time.sleep(0.6); open(place + '.saved', 'w').close(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); open(place, 'w').close(); time.sleep(600)"
    )
    running = start(program)
    wait_for_files(tmp_path, 2)
    running.send_signal(signal.SIGHUP)
    time.sleep(0.2)  # the launcher has looked between the two
    running.send_signal(again)
    running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + signal.SIGHUP
    assert sorted(os.listdir(tmp_path)) == ["0", "0.saved", "1", "1.saved"]


@pytest.mark.slow
def test_when_one_is_asked_to_end_all_have_time_to_save(tmp_path):
    """It is the shell that dies of the signal; what it has started saves, and so do the others."""
    program = (
        "import os, signal, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n"
        "    time.sleep(1); open(place + '.saved', 'w').close(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); open(f'{place}.{os.getppid()}', 'w').close(); time.sleep(600)"
    )
    running = start(program, patience=0.3, before=["sh", "-c", '"$@"; exit $?', "sh"])
    wait_for_files(tmp_path, 2)
    (shell,) = tmp_path.glob("1.*")
    os.kill(int(shell.suffix[1:]), signal.SIGTERM)
    _, errors = running.communicate(timeout=LIMIT)
    assert "process 1 of 2 was killed by signal 15 (SIGTERM)" in errors
    assert running.returncode == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["0.saved", "1.saved"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saves", "says"),
    [("0", "process 0 still saves after 1 s and is"), ("", "processes 0, 1 still save after 1 s and are"), ("0", None)],
    ids=["one", "both", "nobody listens"],
)
def test_a_checkpoint_that_is_being_written_is_waited_for(tmp_path, saves, says):
    """Longer than ``--grace``, by the processes that write it alone. Ctrl-C ends ``| tee`` too, and nobody listens."""
    program = (
        "import os, signal, sys, time\n"
        "from plait.partitioning.processes.launched import saving\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n"
        f"    if place.endswith({saves!r}):\n"
        "        with saving(): time.sleep(3); open(place + '.saved', 'w').close()\n"
        "        time.sleep(600)\n"
        "    time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, save); open(place, 'w').close(); time.sleep(600)"
    )
    running = start(program, "--grace=1")
    wait_for_files(tmp_path, 2)
    if says is None:
        running.stdout.close(), running.stderr.close()
    running.send_signal(signal.SIGTERM)
    errors = "" if says is None else running.communicate(timeout=LIMIT)[1]
    assert running.wait(timeout=LIMIT) == 128 + signal.SIGTERM
    assert sorted(os.listdir(tmp_path)) == ["0", "0.saved", "1", *([] if saves else ["1.saved"])]
    assert says is None or errors.count(f"{says} waited for; another Ctrl-C or SIGTERM ends all at once") == 1


@pytest.mark.slow
def test_the_one_that_says_that_it_failed_first_is_believed(launched):
    """Not one that ended before it because of it; its last lines are repeated at the end."""
    program = (
        "import os, sys, time\n"
        "from plait.partitioning.processes.launched import tell_first\n"
        "if os.environ['JAX_PROCESS_ID'] == '1':\n"
        "    tell_first(1); print('the reason', file=sys.stderr); time.sleep(1); sys.exit(3)\n"
        "while not os.path.exists(os.environ['PLAIT_LAUNCH_FOLDER'] + '/first'): time.sleep(0.01)\n"
        "tell_first(0); sys.exit(1)"
    )
    status, _, errors = launched(program)
    assert status == 3
    assert "plait: process 1 of 2 exited with status 3" in errors
    assert errors.endswith("plait: the last lines of process 1, which failed first:\n[1] the reason\n")


@pytest.mark.slow
def test_an_impatient_interruption_leaves_nobody_behind(tmp_path):
    """A second Ctrl-C, while a process that does not listen is waited for."""
    program = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    )
    running = start(program)
    wait_for_files(tmp_path, 2)
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(launch.ONE_REQUEST + 0.3)
    running.communicate(timeout=LIMIT)
    assert running.returncode in (130, -signal.SIGINT)  # the third may come when the command is nearly gone
    assert [pid for pid in os.listdir(tmp_path) if is_running(pid)] == []


@pytest.mark.slow
def test_the_one_that_failed_first_is_told(tmp_path, launched):
    """Not one that fails a moment later, because it has lost the first."""
    program = (
        "import os, time\n"
        f"path = {str(tmp_path / 'pid')!r}\n"
        "if os.environ['JAX_PROCESS_ID'] == '1':\n"
        "    open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)\n"
        "    time.sleep(0.5); os._exit(3)\n"
        "while not os.path.exists(path): time.sleep(0.01)\n"
        "stat = f'/proc/{open(path).read()}/stat'\n"
        "while os.path.exists(stat) and open(stat).read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.001)\n"
        "time.sleep(0.03); os._exit(1)"
    )
    for _ in range(3):
        status, _, errors = launched(program)
        assert "plait: process 1 of 2 exited with status 3" in errors
        assert status == 3
        (tmp_path / "pid").unlink()


@pytest.mark.slow
def test_output_that_is_no_text_here_passes(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    running = start("import sys; sys.stdout.buffer.write(b'\\xc3\\xa9 \\xff\\n'); print('after')", processes=1)
    running.stdout.reconfigure(errors="surrogateescape")
    output, errors = running.communicate(timeout=LIMIT)
    assert output.encode(errors="surrogateescape") == b"[0] \xc3\xa9 \xff\n[0] after\n"
    assert (running.returncode, errors) == (0, "")


@pytest.mark.slow
def test_when_nobody_reads_on_the_processes_are_ended():
    """As in ``plait launch ... | head -1``."""
    running = start("while True: print('hello')")
    with running.stdout as output, running.stderr as told:
        assert output.readline().endswith("hello\n")
        output.close()
        told.read()
    assert running.wait(timeout=LIMIT) == 2


@pytest.mark.slow
def test_when_nobody_reads_on_the_processes_have_time_to_save(tmp_path):
    """No process has failed: a full disk of the launcher's output, or a closed pipe, costs no work."""
    program = (
        "import os, signal, sys, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n    time.sleep(2); open(place, 'w').close(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "while True: print('hello'); time.sleep(0.01)"
    )
    running = start(program, patience=0.3)
    with running.stdout as output, running.stderr:
        heard = set()
        while len(heard) < 2:  # a process that has not come to its first line has no handler yet
            heard.add(output.readline())
        output.close()
    assert running.wait(timeout=LIMIT) in (2, 120)  # 120 is Python's, if its last lines cannot be written either
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_when_the_output_is_not_read_the_processes_can_save(tmp_path, stream):
    """The pipe to a program that does not read is full: a process that printed before it saved was killed."""
    program = (
        "import os, signal, sys, time\n"
        f"place = {str(tmp_path)!r} + '/' + os.environ['JAX_PROCESS_ID']\n"
        "def save(*_):\n"
        f"    for _ in range(20_000): print('I save' * 20, file=sys.{stream})\n"
        "    open(place + '.saved', 'w').close(); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save); open(place, 'w').close(); time.sleep(600)"
    )
    running = start(program, "--grace=60")
    wait_for_files(tmp_path, 2)
    running.send_signal(signal.SIGTERM)
    wait_for_files(tmp_path, 4)
    assert sorted(os.listdir(tmp_path)) == ["0", "0.saved", "1", "1.saved"]
    with running.stdout as output, running.stderr as errors:
        for each in (output, errors) if stream == "stdout" else (errors, output):
            each.read()
    assert running.wait(timeout=LIMIT) == 128 + signal.SIGTERM


def test_a_pipe_that_does_not_block_gets_all_lines():
    """As some programs give to those that they start: it takes as much as there is room for."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    lines, news, given = queue.Queue(), queue.Queue(), [bytes([65 + n]) * 60_000 + b"\n" for n in range(5)]
    for line in (*given, None):
        lines.put(line)
    with open(reads, "rb") as source, open(writes, "wb", buffering=0) as target:
        thread = threading.Thread(target=launch._write_lines, args=(lines, target, news))
        thread.start()
        time.sleep(0.1)
        assert b"".join(source.readline() for _ in given) == b"".join(given)
        thread.join(10)
    assert not thread.is_alive()
    assert news.empty()


STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open('{folder}/' + str(child.pid), 'w').close()
time.sleep({first} if os.environ['JAX_PROCESS_ID'] == '1' else 600)
sys.exit(1)
"""


@pytest.mark.slow
def test_what_the_processes_start_is_ended_too(tmp_path, launched):
    launched(STARTS.format(folder=tmp_path, first=1))
    assert len(os.listdir(tmp_path)) == 2
    assert [pid for pid in os.listdir(tmp_path) if is_running(pid)] == []


@pytest.mark.slow
def test_a_command_that_is_killed_takes_its_processes_with_it(tmp_path):
    running = start(STARTS.format(folder=tmp_path, first=600))
    wait_for_files(tmp_path, 2)
    running.kill()
    running.communicate(timeout=LIMIT)  # until nobody has its output open any more
    deadline = time.monotonic() + LIMIT
    while any(is_running(pid) for pid in os.listdir(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in os.listdir(tmp_path) if is_running(pid)] == []


def test_a_program_that_is_not_there_is_named(capsys):
    assert cli.main(["launch", "--processes", "2", "--", "no-such-program"]) == 2
    assert "no-such-program: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--", "true"], "--processes"), (["--processes", "0", "--", "true"], "0 is not 1 or more"),
     (["--processes", "2", "--"], "COMMAND")],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused(arguments, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["launch", *arguments])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["true"], ["echo", "--devices", "3"], [sys.executable, "-c", "print(1)"]])
def test_a_command_that_does_not_stand_behind_two_dashes_is_refused_in_one_line(command, capsys):
    """Its options would be taken for those of plait launch."""
    assert cli.main(["launch", "--processes", "2", *command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plait: launch needs `--` before its COMMAND, such as: plait launch --processes 2 -- ")
    assert err.count("\n") == 1
