"""A run's folder: what is written after each epoch, and where a run goes on."""

import json

import jax.numpy as jnp
import pytest

import plait
from plait.demo.runs import CHECKPOINTS, METRICS, Run
from plait.errors import ArgumentError, CheckpointError


def objects(value=0.0):
    return {"model": plait.Param(jnp.asarray(value, jnp.float32))}


@pytest.fixture
def run(tmp_path):
    """A run of three epochs, in which the model's value is the number of the epoch."""
    run = Run(tmp_path / "run", {"seed": 0, "batch_size": 32})
    run.start(0)
    for epoch in (1, 2, 3):
        run.end_epoch({"epoch": epoch, "step": 10 * epoch, "test_loss": 1 / epoch}, objects(epoch))
    return run


def again(run, **options):
    return Run(run.folder, {**run.options, **options})


def lines(run):
    return [json.loads(line)["epoch"] for line in (run.folder / METRICS).read_text().splitlines()]


def checkpoints(run):
    return sorted(place.name for place in (run.folder / CHECKPOINTS).iterdir())


def everything(run):
    return {place: place.read_bytes() for place in run.folder.rglob("*") if place.is_file()}


def test_each_epoch_leaves_a_line_and_a_checkpoint(run):
    assert lines(run) == [1, 2, 3]
    assert checkpoints(run) == ["epoch-0001", "epoch-0002", "epoch-0003"]


def test_a_run_goes_on_after_its_newest_checkpoint(run):
    found, later = objects(), again(run)
    before = everything(run)
    assert later.resume(found) == 3
    assert later.passed_over == []
    assert float(found["model"][...]) == 3
    assert [row["epoch"] for row in later.rows] == [1, 2, 3]
    assert everything(run) == before


@pytest.mark.parametrize("damage", ["cut off", "no manifest"])
def test_a_half_written_checkpoint_is_passed_over_and_made_again(run, damage):
    newest = run.checkpoints / "epoch-0003"
    if damage == "cut off":
        next(file for file in newest.rglob("*") if file.is_file() and file.parent != newest).write_bytes(b"")
    else:
        (newest / "plait.json").unlink()
    found, later = objects(), again(run)
    assert later.resume(found) == 2
    assert later.passed_over == [newest]
    later.start(2)
    assert float(found["model"][...]) == 2
    assert lines(run) == [1, 2]
    later.end_epoch({"epoch": 3, "step": 30}, objects(3))
    assert again(run).resume(objects()) == 3


def test_a_line_without_its_checkpoint_is_dropped(run):
    with open(run.folder / METRICS, "a") as file:
        file.write('{"epoch": 4, "step": 40}\n{"epo')
    later = again(run)
    later.resume(objects())
    later.start(3)
    assert lines(run) == [1, 2, 3]


def test_without_any_checkpoint_a_run_starts_from_the_beginning(tmp_path):
    assert Run(tmp_path / "none", {}).resume(objects()) == 0
    assert not (tmp_path / "none").exists()


def test_without_any_whole_checkpoint_a_run_does_not_go_on(run):
    for place in run.checkpoints.iterdir():
        (place / "plait.json").write_text("{")
    before = everything(run)
    with pytest.raises(CheckpointError, match=r"at +.*checkpoints\n  found +3 incomplete"):
        again(run).resume(objects())
    assert everything(run) == before


def test_a_run_with_other_options_does_not_go_on(run):
    found = objects(7)
    with pytest.raises(CheckpointError, match="resume with --seed 0 --batch-size 32"):
        again(run, batch_size=64).resume(found)
    assert float(found["model"][...]) == 7


def test_a_fresh_run_replaces_an_earlier_one_and_nothing_else(run):
    (run.folder / "notes.txt").write_text("mine")
    (run.checkpoints / "the-good-one").mkdir()
    (run.checkpoints / ".epoch-0004.abc.partial").mkdir()
    again(run).start(0)
    assert lines(run) == []
    assert checkpoints(run) == ["the-good-one"]
    assert (run.folder / "notes.txt").exists()


@pytest.mark.parametrize("taken", ["run", "run/checkpoints"])
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, taken):
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("a file")
    with pytest.raises(ArgumentError, match=r"at +.*run\n(?s:.*)--output FOLDER"):
        Run(tmp_path / "run", {}).start(0)
    assert (tmp_path / taken).read_text() == "a file"


@pytest.mark.parametrize(
    "names",
    [("metrics.jsonl",), ("checkpoints/epoch-0001/weights",), ("options.json", "metrics.jsonl"), ("curves.png",)],
)
def test_a_folder_of_another_program_is_refused_as_it_is(tmp_path, names):
    """Its files are not deleted. (issue O)"""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"epoch": 1}')
    run = Run(tmp_path, {"seed": 0})
    before = everything(run)
    with pytest.raises(
        ArgumentError, match=rf"did not write, and would delete\n +at +{tmp_path}\n(?s:.*)--output FOLDER"
    ):
        run.start(0, ["curves.png"])
    assert everything(run) == before
