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
from tests.environment import environment
from tests.faults import joint, matrix, small_disk, two_machines
from tests.faults.test_killed import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")]
in_one_process = pytest.mark.parametrize("process", [pytest.param(0, marks=pytest.mark.long), 1])
LIMIT = 240  # seconds, on a busy machine
SURROUNDINGS = environment(JAX_NUMPY_DTYPE_PROMOTION="standard", PYTHONPATH=f"{ROOT}/src{os.pathsep}{ROOT}")


def launched(program, processes, around=((), ()), grace=30):
    """The status, output and errors of ``plait launch``; before it and before each process stand other commands."""
    options = [f"--processes={processes}", "--devices=1", f"--grace={grace}"]
    launch = [sys.executable, "-m", "plait.cli.main", "launch", *options, "--"]
    done = subprocess.run(
        [*around[0], *launch, *around[1], sys.executable, *program],
        cwd=ROOT, env=SURROUNDINGS, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


class Outcome:
    """How a run has ended."""

    def __init__(self, folder, *options, processes=2, grace=30):
        begun = time.monotonic()
        program = ["-m", "tests.faults.joint", str(folder), *options]
        if "--fault=network" in options:
            self.status, output, self.errors = two_machines.run(folder, program, processes)
        elif {"--fault=disk-full", "--fault=write-fails"} & {*options}:
            self.status, output, self.errors = launched(program, processes, small_disk.around(folder))
        else:
            self.status, output, self.errors = launched(program, processes, grace=grace)
        self.seconds = time.monotonic() - begun
        self.results = [json.loads(line) for line in re.findall(r"^\[\d\] (\{.*\})$", output, re.MULTILINE)]
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
        manifest = checkpoints.restore({"model": model, "data": data}, partial=True)
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


@pytest.mark.long
def test_a_signal_to_the_launcher_and_all_processes_saves(tmp_path):
    """They had it twice, from the launcher too, and the second one interrupts at once."""
    found = Outcome(tmp_path, "--fault=sigterm-group")
    assert found.status == 143
    assert found.kept >= joint.MIDDLE, found.errors
    assert found.results == [{"step": found.kept, "reason": "SIGTERM"}] * 2
    assert Outcome(tmp_path).status == 0
    assert [(tmp_path / f"restored-{number}").read_text() for number in range(2)] == ["0", "1"]  # each its own


@pytest.mark.skipif(not small_disk.is_possible(), reason="needs mounts of its own")
def test_processes_with_disks_of_their_own_are_told_before_the_first_step(tmp_path):
    """They trained until the first save, which then failed for a file that was not there."""
    program = (
        "import sys; from plait.checkpoint import checkpoints; from plait.partitioning import connect_processes\n"
        "checkpoints.VISIBLE_WITHIN = 1.0; connect_processes(); checkpoints.Checkpoints(sys.argv[1])"
    )
    script = 'if [ "$JAX_PROCESS_ID" = 1 ]; then mount -t tmpfs tmpfs "$0"; fi; "$@"'
    around = ["unshare", "-rm"], ["unshare", "-m", "sh", "-ec", script, str(tmp_path)]
    status, _, errors = launched(["-c", program, str(tmp_path / "checkpoints")], 2, around)
    assert status == 1
    assert "CheckpointError: the processes of this run do not share a folder for checkpoints" in errors
    assert "process 1 does not see the run.lock of process 0" in errors


def test_processes_in_other_directories_do_not_share_a_relative_folder(tmp_path):
    """At the second start, each looked for checkpoints in a folder of its own, and they waited for each other."""
    program = (
        "import os, sys; import jax; from plait.checkpoint import Checkpoints\n"
        "from plait.partitioning import connect_processes\n"
        "connect_processes(); own = f'{sys.argv[1]}/{jax.process_index()}'\n"
        "os.makedirs(own); os.chdir(own); Checkpoints('run')"
    )
    status, _, errors = launched(["-c", program, str(tmp_path)], 2)
    assert status == 1
    assert "CheckpointError: the processes of this run do not share a folder for checkpoints" in errors
    assert f"process 1 has {tmp_path}/1/run" in errors


def test_a_process_that_may_not_write_is_told_before_the_first_step(tmp_path):
    """It trained until the first save."""
    program = (
        "import os, sys, tempfile; import jax; from plait.checkpoint import checkpoints\n"
        "from plait.partitioning import connect_processes\n"
        "connect_processes()\n"
        "def refuse(**named): raise PermissionError(13, 'Permission denied')\n"
        "if jax.process_index(): tempfile.TemporaryFile = refuse\n"
        "checkpoints.Checkpoints(sys.argv[1])"
    )
    status, _, errors = launched(["-c", program, str(tmp_path / "run")], 2)
    assert status == 1
    assert "CheckpointError: checkpoints cannot be written into this folder" in errors
    assert "Permission denied" in errors


@in_one_process
def test_arguments_that_are_wrong_in_one_process_are_an_error_in_all(tmp_path, process):
    """The others waited for it until JAX ended them, and said nothing of it."""
    found = Outcome(tmp_path, "--fault=wrong-steps", f"--process={process}")
    assert (found.status, found.kept) == (1, 0)
    assert found.all_say("this is not a number of steps")


@pytest.mark.parametrize("fault", ["sigterm", pytest.param("sigterm-all", marks=pytest.mark.long)])
def test_a_signal_does_not_wait_for_a_long_evaluation(tmp_path, fault):
    """The grace period ends before the evaluation. One process alone may have the signal."""
    options = [f"--fault={fault}", "--moment=evaluating", "--evaluate", "--evaluation=60", "--kill-after=8"]
    found = Outcome(tmp_path, *options, grace=8)
    assert found.kept == joint.MIDDLE, found.errors
    assert found.after_fault < 30


@pytest.mark.long
def test_the_last_save_is_waited_for_although_another_takes_longer_than_the_grace_period(tmp_path):
    """The launcher waited for the save during which the signal came, and killed all before the last one began."""
    options = ["--moment=saving", f"--save-every={joint.MIDDLE}", "--save-takes=3"]
    found = Outcome(tmp_path, "--fault=sigterm-all", *options, grace=1)
    assert found.status == 143
    assert found.kept > joint.MIDDLE  # by then the time is over: it may be killed before it says so


@pytest.mark.parametrize("moment", ["fetching", pytest.param("fetching first", marks=pytest.mark.long)])
def test_a_signal_does_not_wait_for_data_that_hangs(tmp_path, moment):
    """Nor for the first batches, which have to be there in all processes before a step begins."""
    found = Outcome(tmp_path, "--fault=sigterm-all", f"--moment={moment}")
    assert found.status == 143
    assert found.kept >= (joint.MIDDLE - 3 if moment == "fetching" else 0)
    assert found.results == [{"step": found.kept, "reason": "SIGTERM"}] * 2
    assert found.after_fault < 20


@pytest.mark.parametrize("fault", ["sigterm", pytest.param("sigterm-all", marks=pytest.mark.long)])
def test_a_signal_before_the_run_begins_ends_it(tmp_path, fault):
    """JAX hears of it once the processes are connected, and used to keep it to itself: the run went on until killed."""
    found = Outcome(tmp_path, f"--fault={fault}", "--moment=connected", "--load=1")
    assert (found.status, found.kept) == (143, 0)
    assert found.results == []
    assert found.after_fault < 15


@pytest.mark.long
def test_a_step_that_raises_in_one_of_four_processes_is_an_error_in_all(tmp_path):
    """Process 0, whose end ends the others, used not to wait until they had said why they end."""
    found = Outcome(tmp_path, "--fault=step-raises", "--moment=first", processes=4)
    assert found.status == 1
    assert found.all_say("OSError: the step is wrong"), found.errors


def test_data_that_raises_in_one_process_saves_what_all_have_done(tmp_path):
    found = Outcome(tmp_path, "--fault=data-raises")
    assert (found.status, found.kept) == (1, joint.MIDDLE - 1)
    assert found.all_say("OSError: the data is gone")
    assert "process 1 of 2 exited with status 1" in found.errors
    assert "the last lines of process 1, which failed first" in found.errors


@pytest.mark.long
@in_one_process
def test_a_process_that_exits_without_an_error_ends_all_with_none(tmp_path, process):
    """The others used to end with an error that named it, and the launcher named one of those."""
    found = Outcome(tmp_path, "--fault=is-done", f"--process={process}")
    assert found.status == 0, found.errors
    assert joint.MIDDLE <= found.kept <= joint.MIDDLE + 4  # told after two steps, and two later
    assert "Error" not in found.errors
    assert "exited with" not in found.errors


@in_one_process
def test_a_process_that_exits_is_named_with_its_status(tmp_path, process):
    """JAX used to abort it, since the others had ended meanwhile, and the launcher named one of those."""
    found = Outcome(tmp_path, "--fault=exits", f"--process={process}")
    assert found.status == 3, found.errors
    assert found.kept >= joint.MIDDLE
    assert f"process {process} of 2 exited with status 3" in found.errors
    assert re.search(rf"^\[{1 - process}\] +found +SystemExit: 3", found.errors, re.MULTILINE), found.errors


@pytest.mark.parametrize(
    "fault",
    [
        "data-raises-no-text",
        *(pytest.param(f"{each}-raises-no-text", marks=pytest.mark.long) for each in ("callback", "step")),
    ],
)
def test_an_error_whose_text_cannot_be_read_is_named_in_all(tmp_path, fault):
    """What its ``__str__`` raises used to take its place, and the others were lost without a reason."""
    found = Outcome(tmp_path, f"--fault={fault}")
    assert found.status == 1, found.errors
    assert found.all_say("NoTextError: <exception str")
    assert re.search(r"^\[0\] .*ProcessError: process 1 failed", found.errors, re.MULTILINE), found.errors
    assert "process 1 of 2 exited with status 1" in found.errors
    assert "an error of the error" not in found.errors


@pytest.mark.long
def test_an_evaluation_that_another_process_has_failed_is_not_begun(tmp_path):
    """A process that heard late that all evaluate used to wait in the evaluation for the one that had failed in it."""
    found = Outcome(tmp_path, "--fault=evaluation-raises", "--evaluate", "--moment=hearing", "--process=0")
    assert (found.status, found.kept) == (1, joint.MIDDLE)
    assert found.all_say("OSError: the evaluation is wrong")


@pytest.mark.long
def test_an_evaluation_is_not_lost_to_data_that_raises_soon_after(tmp_path):
    """All know of the error before the evaluation, and leave that to the resumed run, which used to begin too late."""
    found = Outcome(tmp_path, "--fault=data-raises", "--evaluate", "--moment=evaluated")
    assert (found.status, found.kept) == (1, joint.MIDDLE)
    assert found.all_say("OSError: the data is gone")


@pytest.mark.parametrize(
    "moment", ["mid", *(pytest.param(each, marks=pytest.mark.long) for each in ("first", "last", "saved"))]
)
@in_one_process
def test_a_callback_that_raises_while_the_others_wait_for_it_loses_no_step(tmp_path, process, moment):
    """Callbacks are called after the same steps in all processes. The others used to wait for this one without end."""
    saved = [f"--save-every={joint.MIDDLE}", "--evaluate"] if moment == "saved" else []
    options = ["--fault=callback-raises-alone", f"--moment={moment}", f"--process={process}", *saved]
    found = Outcome(tmp_path, *options)
    assert found.status == 1, found.errors
    assert found.all_say("OSError: the callback is wrong"), found.errors
    at = {"first": 1, "last": joint.STEPS}.get(moment, joint.MIDDLE)
    assert at <= found.kept <= at + 2, found.errors
    assert found.after_fault < 20


@pytest.mark.long
@in_one_process
def test_a_callback_that_raises_before_it_saves_with_the_others_loses_no_step(tmp_path, process):
    """What the others had begun to do together was taken for a part of the last save, which failed in all."""
    found = Outcome(tmp_path, "--fault=callback-saves", f"--process={process}")
    assert found.status == 1, found.errors
    assert found.all_say("OSError: the callback is wrong"), found.errors
    assert joint.MIDDLE <= found.kept <= joint.MIDDLE + 4, found.errors
    assert found.after_fault < 20


@in_one_process
def test_the_last_evaluation_that_raises_in_one_process_loses_no_steps(tmp_path, process):
    """The others, whose thread ends them, began that evaluation again, while the one that failed saved."""
    found = Outcome(tmp_path, "--fault=evaluation-raises", "--evaluate", "--moment=last", f"--process={process}")
    assert (found.status, found.kept) == (1, joint.STEPS), found.errors
    assert found.all_say("OSError: the evaluation is wrong")


@pytest.mark.long
@pytest.mark.parametrize("process", [0, pytest.param(1, marks=pytest.mark.long)])
def test_callbacks_are_called_after_the_last_steps_by_a_process_that_has_failed_too(tmp_path, process):
    """They may wait for each other, and waited until that one had ended."""
    options = ["--callbacks-wait", "--without-checkpoints", f"--process={process}"]
    found = Outcome(tmp_path, "--fault=data-raises", *options)
    assert found.status == 1, found.errors
    assert found.all_say("OSError: the data is gone"), found.errors
    assert "lost" not in found.errors
    assert found.after_fault < 15


@pytest.mark.long
@in_one_process
def test_the_last_evaluation_is_not_begun_again_if_it_raises_after_a_signal(tmp_path, process):
    """The signal is the end of the run, at which what was not evaluated is; but the others wait in the first one."""
    found = Outcome(tmp_path, "--fault=sigterm", "--evaluate", "--moment=last", f"--process={process}")
    assert (found.status, found.kept) == (1, joint.STEPS), found.errors
    assert found.all_say("OSError: the evaluation is wrong")
    assert [(tmp_path / f"evaluated-{number}").read_text() for number in range(2)] == [".", "."]


@pytest.mark.long
@in_one_process
def test_an_evaluation_that_raises_again_when_the_run_is_resumed_is_the_error_of_all(tmp_path, process):
    """The process that failed saved once more than the one that waited in it, and never said what had happened."""
    options = ["--fault=evaluation-raises", "--evaluate", f"--process={process}", "--save-every=10"]
    for _ in range(2):
        found = Outcome(tmp_path, *options)
        (tmp_path / "struck").unlink()
        assert (found.status, found.kept) == (1, joint.MIDDLE), found.errors
        assert found.all_say("OSError: the evaluation is wrong"), found.errors
        assert f"process {process} of 2 exited with status 1" in found.errors
        assert found.after_fault < 12


@pytest.mark.long
def test_a_signal_does_not_wait_for_data_that_hangs_when_that_of_another_process_has_ended(tmp_path):
    """The vote on the last step waited for batches up to that end, which nobody fetched any more."""
    found = Outcome(tmp_path, "--fault=sigterm-all", "--moment=ending")
    assert found.status == 143
    assert found.kept == 1, found.errors
    assert found.results == [{"step": found.kept, "reason": "SIGTERM"}] * 2


@pytest.mark.long
def test_a_save_does_not_depend_on_when_a_process_hears_of_an_error(tmp_path):
    """Those that had not heard of it looked for NaN together, and waited for the one that looked alone."""
    found = Outcome(tmp_path, "--fault=callback-raises", "--save-every=20", "--late")
    assert found.status == 1, found.errors
    assert found.kept >= joint.MIDDLE
    assert found.all_say("OSError: the callback is wrong")


@pytest.mark.long
@in_one_process
def test_a_callback_whose_state_cannot_be_saved_is_an_error_in_all(tmp_path, process):
    """The others went on to the save, in which they waited for this one. The rest of the state is saved."""
    found = Outcome(tmp_path, "--fault=callback-state-raises", f"--process={process}", "--save-every=10")
    assert (found.status, found.kept) == (1, 10)
    assert found.all_say("OSError: the callback's state is wrong")


def test_a_loss_that_is_nan_in_one_process_ends_all(tmp_path):
    """It counted the non-finite numbers of an array that spans all processes, and waited for the others."""
    found = Outcome(tmp_path, "--fault=nan", "--save-every=8")
    assert (found.status, found.kept) == (1, 16), found.errors
    assert found.all_say("the loss is nan at step 20")


@in_one_process
def test_a_run_that_cannot_resume_in_one_process_ends_in_all(tmp_path, process):
    """The others waited for its first batches."""
    assert Outcome(tmp_path, "--fault=data-ends", "--process=0").status == 0
    found = Outcome(tmp_path, "--fault=restoring-raises", f"--process={process}")
    assert (found.status, found.kept) == (1, joint.MIDDLE - 1), found.errors
    assert found.all_say("OSError: the restoring is wrong"), found.errors


def test_processes_that_save_at_different_steps_are_told_so(tmp_path):
    """The run used to hang: one was in a save, and the other in a step, which it alone had begun."""
    found = Outcome(tmp_path, "--fault=other-arguments", "--save-every=10")
    assert (found.status, found.kept) == (1, 0)
    assert found.all_say("different arguments")
    assert found.all_say("save_every=10; save_every=7")


def test_processes_that_create_different_models_are_told_so(tmp_path):
    """Of a variable that is the same on all devices, each process had its own value, and nothing said so."""
    found = Outcome(tmp_path, "--fault=other-model", "--process=2", processes=3)
    assert (found.status, found.kept) == (1, 0)
    assert found.all_say("the processes of this run create different models")
    assert found.all_say(r"at +create_sharded, in process 2$")


def test_copies_that_begin_with_different_values_are_told_of(tmp_path):
    """Process 1 went on with its own, and after the next start with those of process 0: other numbers, silently."""
    found = Outcome(tmp_path, "--fault=other-model", "--copies")
    assert found.status == 0, found.errors
    assert found.errors.count("copies with different values") == 1
    assert re.search(r"at +model\.weight$", found.errors, re.MULTILINE), found.errors
    assert re.search(r"found +other values in process 1$", found.errors, re.MULTILINE)


@pytest.mark.parametrize(
    "copies", [pytest.param([], id="shared"), pytest.param(["--copies"], id="copies", marks=pytest.mark.long)]
)
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


@pytest.mark.long
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_is_stopped_while_it_saves_ends_the_run_after_the_heartbeat(tmp_path, process):
    """`plait launch` used to wait for its checkpoint without end."""
    found = Outcome(tmp_path, "--fault=sigstop", "--moment=saving", "--save-every=10", f"--process={process}")
    assert found.status == 134, found.errors
    assert found.kept == 10
    assert found.after_fault < matrix.SILENCE
    if process == 1:
        assert re.search(r"tasks are unhealthy \(stopped sending heartbeats\):\n\[0\] 1", found.errors)


@pytest.mark.long
def test_a_process_that_is_stopped_for_a_while_goes_on(tmp_path):
    found = Outcome(tmp_path, "--fault=sigstop", "--process=0", "--wake-after=12", "--load=0.1")
    assert found.status == 0, found.errors
    assert found.results == [{"step": joint.STEPS, "reason": "steps"}] * 2
    assert found.kept == joint.STEPS


@pytest.mark.skipif(not small_disk.is_possible(), reason="needs mounts of its own")
@in_one_process
@pytest.mark.parametrize(
    ("fault", "says"), [("disk-full", "No space left|RESOURCE_EXHAUSTED"), ("write-fails", "Read-only file system")]
)
def test_a_disk_that_fails_in_one_process_is_an_error_in_all(tmp_path, fault, says, process):
    """A real one: a full tmpfs, and a mount that is read-only for one process. What was saved stays."""
    found = Outcome(tmp_path, f"--fault={fault}", f"--process={process}", "--save-every=10")
    assert found.status == 1, found.errors
    assert found.all_say("a checkpoint could not be written")
    assert found.all_say(says)
    assert found.kept == 10
    assert found.after_fault < 15


@pytest.mark.parametrize("where", [pytest.param("_begin_to_write", marks=pytest.mark.long), "arrive"])
@in_one_process
def test_all_are_told_of_a_save_that_failed_and_can_save_again(tmp_path, where, process):
    """The others may still be in a barrier of Orbax, which the next save must not meet."""
    status, output, errors = launched(["-m", "tests.faults.again", str(tmp_path), where, str(process)], 2)
    assert status == 0, errors
    for number in (0, 1):
        assert re.search(rf"^\[{number}\] told: .*No space left on device", output, re.MULTILINE), output
        assert f"[{number}] saved" in output
    assert (tmp_path / "checkpoints" / "step-00000002").is_dir()


STOPPED_BY_ONE = """
import sys
import jax, jax.numpy as jnp, numpy as np
import plait
from plait.checkpoint import Checkpoints
from plait.partitioning import connect_processes
from plait.training import Batches, EarlyStop, fit

connect_processes()
callbacks = [EarlyStop("eval/loss", patience=2)] if jax.process_index() == int(sys.argv[2]) else []
with Checkpoints(sys.argv[1]) as checkpoints:
    fitted = fit(
        lambda p, x: x, {"p": plait.Param(jnp.zeros(()))}, Batches([1.0]), steps=40, show=False,
        checkpoints=checkpoints,
        evaluate=lambda: {"loss": 1.0}, evaluate_every=2, save_every=2, callbacks=callbacks,
    )
print("ended", fitted.step, fitted.reason)
"""


@in_one_process
def test_what_a_callback_of_one_process_has_ended_does_not_go_on_in_any(tmp_path, process):
    for _ in range(2):
        status, output, errors = launched(["-c", STOPPED_BY_ONE, str(tmp_path), str(process)], 2)
        assert status == 0, errors
        assert re.findall(r"^\[\d\] ended (\d+) no lower", output, re.MULTILINE) == ["6", "6"], output


@pytest.mark.skipif("PLAIT_FAULTS" not in os.environ, reason="the nox session faults runs all of it, in 45 minutes")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(
    "case", [case for process in (0, 1) for case in matrix.cases(process)], ids=lambda case: case.name
)
def test_the_matrix(tmp_path, case, processes):
    """What has to be kept is, and all say what they have to; see docs/reliability.md."""
    reason = matrix.impossible(case)
    if reason:
        pytest.skip(reason)
    matrix.run(case, processes, tmp_path)


def test_the_page_has_a_cell_for_every_case():
    rows = [line.strip("| ").split(" | ") for line in matrix.PAGE.read_text().splitlines() if line.count("|") == 8]
    for process in (0, 1):
        for case in matrix.cases(process):
            cells = [row[1 + matrix.MOMENTS.index(case.moment)] for row in rows if row[0] == case.fault]
            assert len(", ".join(filter(None, map(str.strip, cells))).split(", ")) > process, case.name


GOES_ON = """
import json
import jax.numpy as jnp, plait
from plait.training import fit

plait.partitioning.connect_processes()

def step(p, x):
    if is_wrong:
        raise ValueError("too big")

for is_wrong in (True, True, False):
    try:
        fitted = fit(step, {"p": plait.Param(jnp.zeros(()))}, [1.0], steps=3, show=False)
        print(json.dumps({"step": fitted.step, "reason": fitted.reason}), flush=True)
    except ValueError as error:
        print("caught", error, flush=True)
"""


def test_a_program_that_goes_on_after_a_failed_run_ends_well(tmp_path):
    """A thread of the failed run still waited for the others when Python ended, which aborted the process."""
    for _ in range(2):
        status, output, errors = launched(["-c", GOES_ON], 2)
        assert (status, errors) == (0, ""), errors
        assert output.count("caught too big") == 4
        assert output.count('{"step": 3, "reason": "steps"}') == 2


PREPARED_BY_ONE = """
import json, os, pathlib, signal, sys, time
import jax, jax.numpy as jnp, numpy as np, plait
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from plait.checkpoint import Checkpoints
from plait.training import fit

plait.partitioning.connect_processes()
folder, fault = pathlib.Path(sys.argv[1]), sys.argv[2]
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

class Prepared:
    position = 0

    def __iter__(self):
        return self

    def __next__(self):
        mine = folder / str(self.position)
        if jax.process_index() == 0:
            if self.position == 8 and fault == "raises":
                raise OSError("the disk is gone")
            if self.position == 8 and fault == "ends":
                raise StopIteration
            if self.position == 8 and fault == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
            mine.touch()
        while not mine.exists():
            time.sleep(0.01)
        self.position += 1
        return jax.make_array_from_callback(
            (2,), NamedSharding(mesh, PartitionSpec("data")), lambda place: np.full(1, self.position, np.float32)
        )

    def get_state(self):
        return self.position

    def set_state(self, position):
        self.position = position

@plait.jit
def step(p, x):
    p[...] += x.mean()
    return p[...]

with jax.set_mesh(mesh), Checkpoints(folder / "checkpoints") as checkpoints:
    model = {"p": plait.partitioning.create_sharded(lambda: plait.Param(jnp.zeros(())))}
    fitted = fit(step, model, Prepared(), steps=40, checkpoints=checkpoints, show=False)
print(json.dumps({"step": fitted.step, "reason": fitted.reason}), flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "status", "kept"),
    [
        pytest.param("raises", 1, [8], marks=pytest.mark.long),
        pytest.param("ends", 0, [8], marks=pytest.mark.long),
        ("sigterm", 0, range(6, 9)),
    ],
)
def test_data_that_waits_for_another_process_that_has_ended_is_interrupted(tmp_path, fault, status, kept):
    """It waited without end for a batch that nobody needed: plain Python, of which JAX knows nothing."""
    found, output, errors = launched(["-c", PREPARED_BY_ONE, str(tmp_path), fault], 2)
    assert found == status, errors
    assert max(int(each.name.removeprefix("step-")) for each in tmp_path.glob("checkpoints/step-*")) in kept, errors
    assert (output.count('"reason"') == 2) is (status == 0)
    assert ("OSError: the disk is gone" in errors) is (fault == "raises")
