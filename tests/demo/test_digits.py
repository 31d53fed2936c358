"""The demo: it learns, it goes on where it stopped with the same result, and it says what it did."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from plait import checkpoint
from plait.checkpoint.leaf_descriptions import named_leaves, to_array
from plait.demo import digits
from plait.demo.digits import Learner, Options, run
from plait.demo.exports import Outcome
from plait.errors import ArgumentError, CheckpointError, MissingDependencyError

pytest.importorskip("sklearn")

FEW = {"epochs": 2, "batch_size": 256, "export": False}
STEPS = 1437 // 256


def learned(folder, epoch=2):
    """All values in a checkpoint of a run with ``FEW``, as bytes."""
    learner = Learner(Options(**FEW), steps_per_epoch=STEPS)
    checkpoint.restore(folder / "checkpoints" / f"epoch-{epoch:04d}", learner.objects())
    values, _, _ = named_leaves(learner.objects())
    return {name: np.asarray(to_array(value, name)).tobytes() for name, value in values.items()}


def rows(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


@pytest.fixture(scope="module", autouse=True)
def promotion_as_users_have_it():
    """Optax's Adam needs it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run of two epochs, and what it printed."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(Options(output=folder, **FEW)) == 0
    return folder


def test_a_run_leaves_metrics_checkpoints_and_figures(unbroken):
    pytest.importorskip("matplotlib")
    assert {place.name for place in unbroken.iterdir()} == {
        "options.json", "metrics.jsonl", "checkpoints", "curves.png", "confusion.png",
    }  # fmt: skip
    assert [(row["epoch"], row["step"]) for row in rows(unbroken)] == [(1, STEPS), (2, 2 * STEPS)]
    assert rows(unbroken)[0].keys() == {
        "epoch", "step", "train_loss", "train_accuracy", "test_loss", "test_accuracy",
    }  # fmt: skip


def test_it_learns(unbroken):
    first, second = rows(unbroken)
    assert second["train_loss"] < first["train_loss"]
    assert second["train_accuracy"] > first["train_accuracy"] + 0.1


@pytest.mark.slow
def test_what_was_interrupted_and_resumed_equals_the_unbroken_run(unbroken, tmp_path):
    """Bit for bit: weights, batch statistics, optimizer state, dropout's keys and counters, metrics."""
    assert run(Options(output=tmp_path, **{**FEW, "epochs": 1})) == 0
    assert run(Options(output=tmp_path, resume=True, **FEW)) == 0
    assert learned(tmp_path) == learned(unbroken)
    assert rows(tmp_path) == rows(unbroken)


def test_the_comparison_would_see_a_lost_random_counter(unbroken):
    first, second = learned(unbroken, epoch=1), learned(unbroken)
    assert first.keys() == second.keys()
    changed = {name for name in first if first[name] != second[name]}
    assert {"model.conv1.kernel", "model.norm1.mean"} <= changed
    assert any("rngs" in name and name.endswith("count") for name in changed)
    assert any(name.startswith("optimizer.opt_state") for name in changed)


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "train_step", interrupt)
    assert run(Options(output=tmp_path / "a b", seed=3, **FEW)) == 130
    command = f"plait demo digits --resume --output '{tmp_path}/a b' --epochs 2 --batch-size 256 --seed 3 --no-export"
    assert command in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_checkpoint_that_is_passed_over_is_named(tmp_path, capsys):
    assert run(Options(output=tmp_path, **FEW)) == 0
    newest = tmp_path / "checkpoints" / "epoch-0002"
    (newest / "plait.json").write_text("{")
    assert run(Options(output=tmp_path, resume=True, **FEW)) == 0
    printed = capsys.readouterr()
    assert f"plait: warning: skipped a damaged checkpoint: {newest}\n" in printed.err
    assert "resuming after epoch 1" in printed.out


@pytest.mark.slow
def test_a_finished_run_can_be_looked_at_again(unbroken, capsys):
    before = learned(unbroken)
    assert run(Options(output=unbroken, resume=True, **FEW)) == 0
    assert learned(unbroken) == before
    assert "resuming after epoch 2" in capsys.readouterr().out


def test_a_run_cannot_go_on_backwards(unbroken):
    with pytest.raises(ArgumentError, match="--epochs 2 or more"):
        run(Options(output=unbroken, resume=True, **{**FEW, "epochs": 1}))


def test_a_run_with_another_seed_is_another_run(unbroken):
    before = rows(unbroken)
    with pytest.raises(CheckpointError, match="--seed 0 --batch-size 256"):
        run(Options(output=unbroken, resume=True, seed=1, **FEW))
    assert rows(unbroken) == before


def test_a_batch_larger_than_the_training_set_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="at most 1437"):
        run(Options(output=tmp_path / "new", batch_size=2000))
    assert not (tmp_path / "new").exists()


def with_exports(monkeypatch, folder, outcomes):
    """Look at a finished run with these outcomes of its exports."""
    monkeypatch.setattr(digits, "iter_exports", lambda *args: iter(outcomes))
    return run(Options(output=folder, resume=True, **{**FEW, "export": True}))


@pytest.mark.slow
def test_a_failed_export_is_exit_status_1_and_is_named(unbroken, monkeypatch, capsys):
    outcomes = [Outcome("First", "ok", "fine"), Outcome("Second", "failed", "max |difference| 3.0e-03\nmore")]
    assert with_exports(monkeypatch, unbroken, outcomes) == 1
    printed = capsys.readouterr()
    assert "plait: the export Second failed: max |difference| 3.0e-03\nmore" in printed.err
    assert "First" not in printed.err
    assert "Second: failed: max |difference| 3.0e-03\n" in printed.out


def test_skipped_parts_are_said_and_stand_in_the_table(unbroken, monkeypatch, capsys):
    def no_matplotlib(*args, **options):
        raise MissingDependencyError("matplotlib is needed", do="pip install 'plait[demo]'")

    monkeypatch.setattr(digits, "save_curves", no_matplotlib)
    outcome = Outcome("TensorFlow SavedModel", "skipped", "pip install 'plait[tensorflow]'")
    assert with_exports(monkeypatch, unbroken, [outcome]) == 0
    printed = capsys.readouterr().out
    assert "figures: skipped; to enable it: pip install 'plait[demo]'" in printed
    assert "TensorFlow SavedModel: skipped; to enable it: pip install 'plait[tensorflow]'" in printed
    table = printed[printed.index("plait demo digits\n") :]
    assert "skipped; to enable it: pip install 'plait[demo]'" in table
    assert "skipped; to enable it: pip install 'plait[tensorflow]'" in table


@pytest.mark.slow
@pytest.mark.oracle
def test_the_whole_demo_is_accurate_and_its_exports_agree(tmp_path):
    if not all(map(importlib.util.find_spec, ("tensorflow", "jax2onnx", "onnxruntime"))):
        pytest.skip("TensorFlow, jax2onnx or ONNX Runtime is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-m", "plait.cli", "demo", "digits", "--output", str(tmp_path)],
        capture_output=True, text=True, env=environment, cwd=Path(digits.__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(tmp_path)[-1]["test_accuracy"] >= 0.975
    table = done.stdout[done.stdout.index("plait demo digits\n") :]
    assert table.count("ok: max |difference|") == 4
