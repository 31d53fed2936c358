"""Runs of several processes on JAX's distributed runtime, with Gloo between them: 2 of 4 devices, 4 of 2."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import transformer

from plait.cli import launch as launcher
from tests.environment import environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = str(ROOT / "examples" / "transformer.py")
DYING = str(HERE / "dying_run.py")
STEPS = 50

pytestmark = pytest.mark.slow


def launch(processes, *program):
    command = [
        sys.executable,
        "-m",
        "plait.cli.main",
        "launch",
        f"--processes={processes}",
        f"--devices={8 // processes}",
    ]
    done = subprocess.run(
        [*command, "--", sys.executable, *map(str, program)],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def losses_in(output):
    """Losses that process 0 printed, by step."""
    pattern = r'^\[0\] (?:\{"step": |step )(\d+)(?:, "loss":| loss) ([\d.e+-]+)'
    return {int(step): float(loss) for step, loss in re.findall(pattern, output, re.MULTILINE)}


@pytest.fixture(scope="module")
def unbroken():
    """The losses of the run on one device."""
    with jax.numpy_dtype_promotion("standard"):  # Optax needs it
        return dict(enumerate(transformer.train(transformer.Config(), STEPS)))


def check_agrees(losses, unbroken, steps):
    assert sorted(losses) == list(steps)
    assert max(abs(losses[step] - unbroken[step]) for step in steps) <= 1e-5


def test_two_processes_of_four_devices_agree_with_one_device(unbroken):
    status, output, errors = launch(2, EXAMPLE, "--mesh=data=2,fsdp=2,model=2", f"--steps={STEPS}")
    assert status == 0, errors
    check_agrees(losses_in(output), unbroken, range(STEPS))


@pytest.mark.long
def test_a_killed_run_of_four_processes_goes_on_with_two(unbroken, tmp_path):
    """The others end at once and clearly; the restart has another layout, fewer processes, and the same losses."""
    start = time.monotonic()
    status, output, errors = launch(4, DYING, "fsdp=4,model=2", 30, tmp_path, "2:9:kill")
    assert time.monotonic() - start < 200
    assert status == 128 + 9
    assert "plait: process 2 of 4 was killed by signal 9 (SIGKILL); the others are terminated" in errors
    check_agrees(losses_in(output), unbroken, range(len(losses_in(output))))
    assert len(losses_in(output)) in (9, 10)
    assert "step-8" in os.listdir(tmp_path)
    status, output, errors = launch(2, EXAMPLE, "--mesh=model=8", "--steps=18", f"--checkpoints={tmp_path}")
    assert status == 0, errors
    check_agrees(losses_in(output), unbroken, range(8, 18))


@pytest.mark.parametrize(
    ("death", "says"),
    [
        pytest.param("1:3:kill", None, marks=pytest.mark.long),
        ("0:3:kill", None),
        pytest.param("1:3:raise", "this process has had enough", marks=pytest.mark.long),
    ],
)
def test_without_a_launcher_the_others_end_clearly_within_a_minute(death, says, tmp_path):
    options = launcher.Options([sys.executable, DYING, "data=4", "1000", str(tmp_path), death, "0"], 2, devices=2)
    address = f"127.0.0.1:{launcher._free_port()}"
    started = [
        subprocess.Popen(
            options.command, env=launcher.environment(environment(), options, number, address),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    gone = int(death[0])
    first = started[gone].communicate(timeout=120)[0]
    survivor = started[1 - gone].communicate(timeout=60)[0]
    assert started[gone].returncode == (-9 if says is None else 1)
    assert says is None or says in first
    # Whichever comes first: the failure of a collective, or JAX's own watch over heartbeats, which ends the process.
    assert started[1 - gone].returncode in (1, -signal.SIGABRT)
    assert re.search(
        rf"plait: another process of this run has ended, and this one cannot continue.*\n  at +process {1 - gone} of 2"
        r"|Terminating process because .* most likely indicates that another task died",
        survivor,
    )


def test_processes_check_a_checkpoint_together_and_a_damaged_byte_is_an_error_in_all(tmp_path):
    """Each file is read for its checksum by one of them; all are told before anything has changed."""
    status, output, errors = launch(2, HERE / "restoring_run.py", tmp_path)
    assert status == 0, errors
    read = [re.search(rf"^\[{process}\] read (.*) values 2\.0$", output, re.MULTILINE)[1].split() for process in (0, 1)]
    step = tmp_path / "step-00000002"
    there = [str(file.relative_to(step)) for file in step.rglob("*") if file.is_file() and file.name != "plait.json"]
    assert all(read)
    assert sorted(read[0] + read[1]) == sorted(there)
    for process in (0, 1):
        refused = rf"^\[{process}\] refused .*/d/\S+ with a different checksum.* values 0\.0$"
        assert re.search(refused, output, re.MULTILINE), output
        assert f"[{process}] restored 1 values 1.0" in output
