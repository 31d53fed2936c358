"""Runs of several processes in which one of them has a fault: what was kept, what all say, and how long it took."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints
from tests.faults import joint, matrix
from tests.faults.test_killed import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")]
LIMIT = 240  # seconds, on a busy machine
SURROUNDINGS = {**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "standard", "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}


class Outcome:
    """How a run has ended."""

    def __init__(self, folder, *options, processes=2):
        launch = [sys.executable, "-m", "plait.cli", "launch", f"--processes={processes}", "--devices=1", "--"]
        begun = time.monotonic()
        done = subprocess.run(
            [*launch, sys.executable, "-m", "tests.faults.joint", str(folder), *options],
            cwd=ROOT, env=SURROUNDINGS, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        self.seconds = time.monotonic() - begun
        self.status, self.errors = done.returncode, done.stderr
        self.results = [json.loads(line) for line in re.findall(r"^\[\d\] (\{.*\})$", done.stdout, re.MULTILINE)]
        self.processes = processes
        struck = folder / "struck"
        self.after_fault = time.time() - float(struck.read_text()) if struck.exists() else 0.0
        self.kept = kept_in(folder)

    def all_say(self, text):
        """Whether this is in the output of every process."""
        return all(re.search(rf"^\[{n}\].*{text}", self.errors, re.MULTILINE) for n in range(self.processes))


def kept_in(folder) -> int:
    """The step of the newest checkpoint, whose state and position are those of that step; 0 if there is none."""
    if not (folder / "checkpoints").is_dir():
        return 0
    model, data = joint.Counter(), plait.training.Batches(list(range(joint.STEPS)))
    with Checkpoints(folder / "checkpoints") as checkpoints:
        manifest = checkpoints.restore({"model": model, "data": data})
    if manifest is None:
        return 0
    step = manifest.step
    assert step is not None
    assert int(model.steps[...]) == step
    assert int(model.seen[...]) == step * (step + 1) // 2
    assert data.get_state()["index"] + data.get_state()["epoch"] * joint.STEPS == step
    assert np.isfinite(np.asarray(model.weight[...])).all()
    return step


def test_a_signal_to_the_launcher_saves(tmp_path):
    """Also without periodic saves."""
    found = Outcome(tmp_path, "--fault=sigterm-all")
    assert found.status == 143
    assert found.kept >= joint.MIDDLE
    assert found.results == [{"step": found.kept, "reason": "SIGTERM"}] * 2


def test_a_signal_does_not_wait_for_data_that_hangs(tmp_path):
    found = Outcome(tmp_path, "--fault=sigterm-all", "--moment=fetching")
    assert found.status == 143
    assert found.kept >= joint.MIDDLE - 3
    assert found.results == [{"step": found.kept, "reason": "SIGTERM"}] * 2
    assert found.after_fault < 20


def test_a_run_of_four_processes_ends_together(tmp_path):
    found = Outcome(tmp_path, "--fault=data-raises", "--process=2", processes=4)
    assert (found.status, found.kept) == (1, joint.MIDDLE - 1)
    assert found.all_say("OSError: the data is gone")
    assert "process 2 of 4 exited with status 1" in found.errors


def test_data_that_raises_in_one_process_saves_what_all_have_done(tmp_path):
    found = Outcome(tmp_path, "--fault=data-raises")
    assert (found.status, found.kept) == (1, joint.MIDDLE - 1)
    assert found.all_say("OSError: the data is gone")
    assert "process 1 of 2 exited with status 1" in found.errors
    assert "the last lines of process 1, which failed first" in found.errors


@pytest.mark.parametrize("copies", [[], ["--copies"]], ids=["shared", "copies"])
def test_data_that_ends_in_one_process_ends_all(tmp_path, copies):
    found = Outcome(tmp_path, "--fault=data-ends", *copies)
    assert found.status == 0, found.errors
    assert found.results == [{"step": joint.MIDDLE - 1, "reason": "data"}] * 2
    assert found.kept == joint.MIDDLE - 1


def test_a_signal_without_checkpoints_ends_the_run(tmp_path):
    found = Outcome(tmp_path, "--fault=sigterm", "--without-checkpoints")
    assert found.status == 0, found.errors
    assert [result["reason"] for result in found.results] == ["SIGTERM"] * 2
    assert found.results[0] == found.results[1]


@pytest.mark.skipif("PLAIT_FAULTS" not in os.environ, reason="make faults runs all of the matrix, in 20 minutes")
@pytest.mark.parametrize(
    "case", [case for process in (0, 1) for case in matrix.cases(process)], ids=lambda case: case.name
)
def test_the_matrix(tmp_path, case):
    """What has to be kept is, and all say what they have to; see docs/reliability.md."""
    matrix.run(case, 2, tmp_path)


def test_the_page_has_a_row_for_every_case():
    page = matrix.PAGE.read_text()
    for process in (0, 1):
        for case in matrix.cases(process):
            assert f"| {case.fault} | {case.process} | {case.moment} |" in page
