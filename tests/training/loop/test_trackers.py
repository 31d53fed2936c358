"""Loggers for Weights & Biases, MLflow and ClearML, each with the service's own package, without a network."""

import json
import struct
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest

import plait
from plait.errors import MissingDependencyError
from plait.training import ClearML, MLflow, WeightsAndBiases, fit
from tests.environment import environment

MAKE = {
    "wandb": lambda: WeightsAndBiases(project="p"),
    "mlflow": lambda: MLflow("e"),
    "clearml": lambda: ClearML("p", "n"),
}
WRITTEN = {10: {"loss": 2.5, "eval/loss": 0.5}, 20: {"loss": 5.0}}


@pytest.mark.parametrize("package", MAKE)
def test_without_the_package_it_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as caught:
        MAKE[package]()
    assert caught.value.parts["do"] == f"pip install 'plait[{package}]'"


@pytest.mark.slow
def test_training_loads_none_of_them():
    code = "import sys, plait.training as t; t.WeightsAndBiases, t.MLflow, t.ClearML; "
    code += f"print(sys.modules.keys() & {list(MAKE)})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def write(logger):
    for step, values in WRITTEN.items():
        logger.write(step, values)
    logger.close()
    logger.close()  # as after an error: the second does nothing


def records_of_wandb(file):
    """The records in a file of W&B: after seven bytes, a checksum, a length, a type and the data of each."""
    data, place = file.read_bytes(), 7
    while place < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, place)
        assert kind == 1, "a record in one piece"
        yield data[place + 7 : place + 7 + length]
        place += 7 + length


def rows_of_wandb(folder):
    record_type = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    rows = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records_of_wandb(file):
            record = record_type.FromString(data)
            if record.HasField("history"):
                items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                step = items.pop("_step", record.history.step.num)
                rows.append((step, {name: value for name, value in items.items() if name[0] != "_"}))
    return rows


def test_wandb_gets_each_number_at_its_step(tmp_path):
    wandb = pytest.importorskip("wandb")
    logger = WeightsAndBiases(project="p", mode="offline", dir=str(tmp_path))
    assert logger.run is None
    write(logger)
    wandb.teardown()  # ends the process of wandb that writes the file
    assert rows_of_wandb(tmp_path) == list(WRITTEN.items())


@pytest.fixture
def store(monkeypatch, tmp_path):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path.as_uri()


def history_of(store, run_id):
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(store)
    names = client.get_run(run_id).data.metrics
    return {name: [(each.step, each.value) for each in client.get_metric_history(run_id, name)] for name in names}


def test_mlflow_gets_each_number_at_its_step_and_continues_a_run(store):
    mlflow = pytest.importorskip("mlflow")
    logger = MLflow("digits", run_name="first", tracking_uri=store)
    assert logger.run_id is None
    write(logger)
    assert history_of(store, logger.run_id) == {"loss": [(10, 2.5), (20, 5.0)], "eval/loss": [(10, 0.5)]}
    client = mlflow.MlflowClient(store)
    run = client.get_run(logger.run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    again = MLflow("digits", run_id=logger.run_id, tracking_uri=store)
    again.write(30, {"loss": 1.0})
    assert client.get_run(logger.run_id).info.status == "RUNNING"
    again.close()
    assert history_of(store, logger.run_id)["loss"] == [(10, 2.5), (20, 5.0), (30, 1.0)]
    other = MLflow("digits", tracking_uri=store)
    write(other)
    experiment = client.get_experiment_by_name("digits")
    assert {each.info.run_id for each in client.search_runs([experiment.experiment_id])} == {
        logger.run_id,
        other.run_id,
    }


CLEARML = f"""
from plait.training import ClearML
logger = ClearML("vision", "digits", auto_resource_monitoring=False)
for step, values in {WRITTEN}.items():
    logger.write(step, values)
logger.close()
logger.close()
"""


@pytest.mark.slow
def test_clearml_gets_each_number_at_its_step(tmp_path):
    """In a process of its own: ClearML has one task for each process, and hooks that stay."""
    pytest.importorskip("clearml")
    surroundings = environment(CLEARML_OFFLINE_MODE="1", HOME=str(tmp_path), CLEARML_CACHE_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CLEARML], env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.rglob("offline-*.zip")
    with zipfile.ZipFile(file) as archive:
        lines = archive.read("metrics.jsonl").splitlines()
    rows = [(row["iter"], row["metric"], row["variant"], row["value"]) for line in lines for row in json.loads(line)]
    assert sorted(rows) == [(10, "eval", "loss", 0.5), (10, "loss", "loss", 2.5), (20, "loss", "loss", 5.0)]


def test_fit_starts_a_run_in_the_first_process_alone(store, monkeypatch):
    @plait.jit
    def step(model, optimizer, batch):
        loss, grads = plait.value_and_grad(lambda model: (model(batch) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    def run(*loggers):
        model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        objects = {"model": model, "optimizer": plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)}
        fit(step, objects, [jnp.ones((2, 2))] * 4, steps=4, log_every=2, loggers=loggers, show=False)

    first = MLflow("e", tracking_uri=store)
    run(first)
    assert [step for step, _ in history_of(store, first.run_id)["loss"]] == [2, 4]
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    second, asked = MLflow("e", tracking_uri=store), MLflow("e", tracking_uri=store, every_process=True)
    run(second, asked)
    assert second.run_id is None
    assert [step for step, _ in history_of(store, asked.run_id)["loss"]] == [2, 4]


class Recorded:
    """A package, or anything of it: every call is noted, and returns what was said, or another one."""

    def __init__(self, calls, name="", **returned):
        self._calls, self._name, self._returned = calls, name, returned

    def __getattr__(self, name):
        return Recorded(self._calls, f"{self._name}.{name}".strip("."), **self._returned)

    def __call__(self, *args, **options):
        self._calls.append((self._name, args, options))
        return self._returned.get(self._name, self)


def calls_of(monkeypatch, package, make, **returned):
    calls = []
    monkeypatch.setitem(sys.modules, package, Recorded(calls, **returned))
    write(make())
    return [(name, *args, options) for name, args, options in calls]


def test_the_calls_of_wandb(monkeypatch):
    """Settings are those of its own function; the second ``close`` does nothing."""
    assert calls_of(monkeypatch, "wandb", lambda: WeightsAndBiases(project="p", id="7", resume="allow")) == [
        ("init", {"project": "p", "id": "7", "resume": "allow"}),
        ("init.log", WRITTEN[10], {"step": 10}),
        ("init.log", WRITTEN[20], {"step": 20}),
        ("init.finish", {}),
    ]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("run_id", [None, "r9"])
def test_the_calls_of_mlflow(monkeypatch, there, run_id):
    """An experiment is created if there is none, a run unless one is to be continued."""
    clock = iter([1.5, 2.0])
    monkeypatch.setattr("plait.training.loop.trackers.time.time", lambda: next(clock))
    found = calls_of(
        monkeypatch, "mlflow", lambda: MLflow("e", run_name="n", run_id=run_id, tracking_uri="file:/x"),
        **{
            "MlflowClient.get_experiment_by_name": SimpleNamespace(experiment_id="e1") if there else None,
            "MlflowClient.create_experiment": "e2",
            "MlflowClient.create_run": SimpleNamespace(info=SimpleNamespace(run_id="r1")),
            "entities.Metric": "metric",
        },
    )  # fmt: skip
    run = run_id or "r1"
    made = [("MlflowClient.create_run", "e1" if there else "e2", {"run_name": "n"})]
    asked = [
        ("MlflowClient.get_experiment_by_name", "e", {}),
        *[("MlflowClient.create_experiment", "e", {})] * (not there),
    ]
    assert found == [
        ("MlflowClient", "file:/x", {}),
        *([("MlflowClient.update_run", "r9", {"status": "RUNNING"})] if run_id else [*asked, *made]),
        ("entities.Metric", "loss", 2.5, 1500, 10, {}),
        ("entities.Metric", "eval/loss", 0.5, 1500, 10, {}),
        ("MlflowClient.log_batch", run, {"metrics": ["metric"] * 2}),
        ("entities.Metric", "loss", 5.0, 2000, 20, {}),
        ("MlflowClient.log_batch", run, {"metrics": ["metric"]}),
        ("MlflowClient.set_terminated", run, {}),
    ]


def test_the_calls_of_clearml(monkeypatch):
    """It connects to no framework and no parser of arguments, unless it is told to."""
    quiet = {"auto_connect_frameworks": False, "auto_connect_arg_parser": False}
    given = {"auto_connect_frameworks": True, "continue_last_task": 0}
    for options in ({}, given):
        found = calls_of(monkeypatch, "clearml", lambda options=options: ClearML("p", "n", **options))
        assert found[0] == ("Task.init", {"project_name": "p", "task_name": "n", **quiet, **options})
        reports = [call for call in found if call[0].endswith("report_scalar")]
        assert [call[1:] for call in reports] == [
            ("loss", "loss", 2.5, {"iteration": 10}),
            ("eval", "loss", 0.5, {"iteration": 10}),
            ("loss", "loss", 5.0, {"iteration": 20}),
        ]
        assert [call[0] for call in found if call[0].endswith("close")] == [found[-1][0]]
        assert len(found) == 1 + 2 + 3 + 1


@pytest.mark.parametrize("package", MAKE)
def test_each_writes_in_the_first_process_unless_it_is_told_otherwise(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, Recorded([]))
    logger = MAKE[package]()
    assert logger.every_process is False
    logger.close()  # before the first line there is nothing to close
