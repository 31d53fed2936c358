"""A run that loses processes: four, then two, then one; the model has seen each sample as often as it should."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.environment import environment
from tests.faults import witness
from tests.faults.test_killed import ROOT, outcome, wait_for_steps

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")]
LIMIT = 300  # seconds
SURROUNDINGS = environment(JAX_NUMPY_DTYPE_PROMOTION="standard", PYTHONPATH=f"{ROOT}/src{os.pathsep}{ROOT}")


def begin(folder, processes):
    """The witness on a mesh of four devices, which so many processes have between them."""
    launch = [
        sys.executable,
        "-m",
        "plait.cli.main",
        "launch",
        f"--processes={processes}",
        f"--devices={4 // processes}",
    ]
    return subprocess.Popen(
        [*launch, "--", sys.executable, "-m", "tests.faults.witness", str(folder), "--mesh"],
        cwd=ROOT, env=SURROUNDINGS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The same run, all four devices in one process that nobody ends."""
    folder = tmp_path_factory.mktemp("unbroken")
    process = begin(folder, 1)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    return outcome(folder)


@pytest.mark.long
def test_four_processes_then_two_then_one(tmp_path, unbroken):
    chance = random.Random(4)
    ends = {4: signal.SIGKILL, 2: signal.SIGTERM}
    for processes, number in ends.items():
        process = begin(tmp_path, processes)
        try:
            wait_for_steps(tmp_path, process, chance.randint(8, 12))
            time.sleep(chance.random() / 50)
            with contextlib.suppress(ProcessLookupError, IndexError):
                # One of four dies, and the others cannot go on; of two, both are asked to end, and save.
                os.kill(children(process)[2] if number == signal.SIGKILL else process.pid, number)
            output, errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        assert process.returncode == 128 + number, errors
        assert output.count('"reason": "SIGTERM"') == (2 if number == signal.SIGTERM else 0), output
    process = begin(tmp_path, 1)
    output, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    assert json.loads(output.partition("] ")[2]) == {"step": witness.STEPS, "reason": "steps"}

    step, model, state, rows = outcome(tmp_path)
    whole_step, whole_model, _, whole_rows = unbroken
    assert step == whole_step == witness.STEPS
    np.testing.assert_array_equal(model.counts.value, np.full(witness.SAMPLES, witness.EPOCHS))
    assert int(model.hash.value) == int(whole_model.hash.value)
    assert [row["step"] for row in rows] == [row["step"] for row in whole_rows]
    losses, expected = (np.array([row["loss"] for row in each]) for each in (rows, whole_rows))
    print(f"the largest relative difference of a loss: {np.max(np.abs(losses / expected - 1)):.1e}")
    np.testing.assert_allclose(losses, expected, rtol=1e-4, err_msg="sums in another order")
    assert state.keys() == unbroken[2].keys()
