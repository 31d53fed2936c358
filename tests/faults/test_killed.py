"""A run that is killed again and again ends as the run that was not: the model is the witness.

``PLAIT_FAULTS`` is how many times; the nox session ``faults`` asks for 100.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints
from tests.compare import assert_same, readable
from tests.environment import environment
from tests.faults import witness

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("PLAIT_FAULTS", "4"))
ROOT = Path(__file__).parents[2]


def begin(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.witness", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(JAX_NUMPY_DTYPE_PROMOTION="standard"),
    )


def outcome(folder):
    objects = witness.objects()
    with Checkpoints(folder / "checkpoints") as checkpoints:
        manifest = checkpoints.restore(objects, partial=True)
    state = plait.to_pure_dict(plait.state(list(objects.values())))
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return manifest.step, objects["model"], jax.tree.map(readable, state), rows


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    process = begin(folder)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert json.loads(out) == {"step": witness.STEPS, "reason": "steps"}
    return outcome(folder)


def wait_for_steps(folder, process, steps):
    """Until so many more lines of the log are there."""
    log = folder / "log.jsonl"
    first = log.read_bytes().count(b"\n") if log.exists() else 0
    while process.poll() is None and (log.read_bytes().count(b"\n") if log.exists() else 0) < first + steps:
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_run_that_is_ended_again_and_again_is_the_unbroken_one(tmp_path, unbroken, number):
    chance = random.Random(int(number))
    for _ in range(KILLS):
        process = begin(tmp_path)
        try:
            wait_for_steps(tmp_path, process, chance.randint(1, max(2, 2 * witness.STEPS // (KILLS + 2))))
            time.sleep(chance.random() / 50)  # any moment of a step, or of a save
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            out, errors = process.communicate(timeout=120)
        finally:
            process.kill()
        if number == signal.SIGTERM and process.returncode == 0:
            assert json.loads(out)["reason"] in ("SIGTERM", "steps"), errors
    process = begin(tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    step, model, state, rows = outcome(tmp_path)
    whole_step, _, whole_state, whole_rows = unbroken
    assert step == whole_step == witness.STEPS
    np.testing.assert_array_equal(model.counts.value, np.full(witness.SAMPLES, witness.EPOCHS))
    assert_same(state, whole_state)  # the hash, weights, averages of the optimizer, keys: bit for bit
    assert rows == whole_rows
