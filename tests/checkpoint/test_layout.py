"""The folder of a checkpoint: whole, half-written, damaged, replaced."""

import hashlib
import json
import os
import re

import pytest

from plait.checkpoint import layout
from plait.checkpoint.layout import (
    ARRAYS,
    MANIFEST,
    VERSION,
    Manifest,
    check_whole,
    damaged_in,
    latest,
    new_folder,
    saved_in,
    write_manifest,
    written_by_orbax,
)
from plait.errors import CheckpointError
from tests.failing_renames import each_failing_rename, let_renames_fail

EMPTY = Manifest(None, {}, {})


def make(path, *, step=None, metrics=None):
    """A whole checkpoint with one file in it."""
    with new_folder(path, overwrite=True) as draft:
        (draft / ARRAYS).mkdir()
        (draft / ARRAYS / "values").write_bytes(b"1234")
        write_manifest(draft, Manifest(step, metrics or {}, {"w": {"kind": "int", "value": "3"}}))
    return path


def rewrite(path, **changes):
    """Change the manifest as somebody with an editor would."""
    stored = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**stored, **changes}))


DAMAGES = {
    "no manifest": lambda path: (path / MANIFEST).unlink(),
    "an empty manifest": lambda path: (path / MANIFEST).write_text(""),
    "half a manifest": lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text()[:100]),
    "a manifest of something else": lambda path: (path / MANIFEST).write_text("[1, 2]"),
    "an edited manifest": lambda path: rewrite(path, step=99),
    "a later format": lambda path: rewrite(path, version=VERSION + 1),
    "a file that is gone": lambda path: (path / ARRAYS / "values").unlink(),
    "a file that is cut off": lambda path: (path / ARRAYS / "values").write_bytes(b"12"),
    "a file with a flipped bit": lambda path: (path / ARRAYS / "values").write_bytes(b"1235"),
}

each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


def test_a_whole_checkpoint_gives_back_its_manifest(tmp_path):
    manifest = check_whole(make(tmp_path / "a", step=7, metrics={"loss": 0.1, "nan": None}))
    assert manifest == Manifest(7, {"loss": 0.1, "nan": None}, {"w": {"kind": "int", "value": "3"}})


def test_the_entries_of_a_manifest_have_no_order(tmp_path):
    """What was formatted by another tool is whole."""
    path = make(tmp_path / "a", step=7)
    stored = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(dict(reversed(stored.items()))))
    assert check_whole(path).step == 7


@each_damage
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path, damage):
    path = make(tmp_path / "damaged")
    damage(path)
    with pytest.raises(CheckpointError, match=r"at +.*damaged\n"):
        check_whole(path)


def test_a_manifest_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "a" / MANIFEST).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=rf"cannot be read\n +at +{tmp_path}/a/{MANIFEST}\n +found +a folder"):
        check_whole(tmp_path / "a")


@pytest.mark.parametrize(("count", "found"), [(1, "f0"), (4, "f0, f1, f2, f3"), (6, "f0, f1, f2, f3 and 2 more")])
def test_files_that_are_gone_are_named(tmp_path, count, found):
    with new_folder(tmp_path / "a", overwrite=False) as draft:
        for number in range(count):
            (draft / f"f{number}").write_text("x")
        write_manifest(draft, EMPTY)
    for file in (tmp_path / "a").glob("f*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=rf"found +no {found}\n"):
        check_whole(tmp_path / "a")


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder"])
def test_something_else_is_not_a_checkpoint(tmp_path, what):
    path = tmp_path / "other"
    if what == "a file":
        path.write_text("")
    elif what == "a folder":
        path.mkdir()
    with pytest.raises(CheckpointError, match=rf"not a plait checkpoint\n  at +.*other\n  found +{what}"):
        check_whole(path)


def test_steps_of_orbax_are_told_without_ours_and_unfinished_ones(tmp_path):
    for item in ("10/default", "7/default", "step-9/arrays", "11.orbax-checkpoint-tmp/default"):
        (tmp_path / item).mkdir(parents=True)
        (tmp_path / item / "_METADATA").touch()
    error = str(written_by_orbax(tmp_path, also="; or this"))
    assert re.search(r"steps of a CheckpointManager: 7, 10\n(?s:.*)10', model(?s:.*)Linen\s+wrote; or\s+this", error)


def test_extra_files_do_no_harm(tmp_path):
    path = make(tmp_path / "a")
    (path / "notes.txt").write_text("the good one")
    assert check_whole(path).step is None


def test_latest_is_the_highest_step_whatever_the_names(tmp_path):
    for name, step in (("z", 1), ("b", 30), ("a", 4)):
        make(tmp_path / name, step=step)
    assert latest(tmp_path) == tmp_path / "b"


def test_one_with_a_step_is_newer_than_those_without(tmp_path):
    """Whatever the step is."""
    make(tmp_path / "a", step=0)
    make(tmp_path / "b")
    assert latest(tmp_path) == tmp_path / "a"
    assert [each.path.name for each in saved_in(tmp_path)] == ["a"]


def test_a_hidden_folder_is_no_checkpoint(tmp_path):
    """Not even a whole one: it has not got its name yet."""
    make(tmp_path / ".a.partial", step=9)
    assert (latest(tmp_path), saved_in(tmp_path), damaged_in(tmp_path)) == (None, [], [])


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=str)
def test_of_one_step_the_later_one_is_the_newer(tmp_path, names):
    for time, name in enumerate(names):
        with new_folder(tmp_path / name, overwrite=False) as draft:
            write_manifest(draft, Manifest(7, {}, {}, time=float(time)))
    assert tuple(each.path.name for each in saved_in(tmp_path)) == names


def test_an_older_manifest_has_neither_extra_data_nor_a_time(tmp_path):
    path = make(tmp_path / "a", step=3)
    stored = json.loads((path / MANIFEST).read_text())
    del stored["extra"], stored["time"], stored["sha256"]
    sum_of_it = hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({**stored, "sha256": sum_of_it}))
    assert check_whole(path) == Manifest(3, {}, {"w": {"kind": "int", "value": "3"}}, {}, 0.0)


def test_a_checkpoint_of_which_a_part_is_gone_is_skipped(tmp_path, monkeypatch):
    """As by ``rm -r`` in another process, which has not come to the manifest yet."""
    for step, name in enumerate("ab"):
        make(tmp_path / name, step=step)
    monkeypatch.setattr(
        layout, "check_files", lambda path: (path / "values").unlink() if path.parent.name == "b" else 0
    )
    assert latest(tmp_path).name == "a"
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        check_whole(tmp_path / "b")


def test_what_looks_like_a_checkpoint_but_cannot_be_read_is_listed(tmp_path):
    make(tmp_path / "whole")
    for name in ("no manifest", "half a manifest"):
        DAMAGES[name](make(tmp_path / name))
    (tmp_path / "no arrays").mkdir()
    (tmp_path / "no arrays" / MANIFEST).write_text("{")
    (tmp_path / "pictures").mkdir()
    assert damaged_in(tmp_path) == ["half a manifest", "no arrays", "no manifest"]


def test_latest_without_steps_is_the_last_by_number(tmp_path):
    for name in ("epoch-9", "epoch-10", "epoch-1"):
        make(tmp_path / name)
    assert latest(str(tmp_path)) == tmp_path / "epoch-10"


@pytest.mark.parametrize(
    "names",
    [
        ("9", "10", "epoch-1"),
        ("epoch-9", "epoch-9b", "epoch-10", "epoch-10-2", "epoch-10-10"),
        ("1-9", "1-10", "1a", "2"),
        ("1", "1²", "1٣", "2"),
    ],
    ids=["numbers before words", "several numbers", "text after numbers", "other figures"],
)
def test_the_last_by_name_is_found_whatever_the_names(tmp_path, names):
    """Numbers compare as numbers, text as text; a figure that is no ASCII digit is text."""
    for name in names:
        make(tmp_path / name)
        assert latest(tmp_path) == tmp_path / name


@each_damage
def test_latest_passes_over_damaged_ones(tmp_path, damage):
    make(tmp_path / "1", step=1)
    damage(make(tmp_path / "2", step=2))
    (tmp_path / "metrics.jsonl").write_text("")
    assert latest(tmp_path) == tmp_path / "1"


def test_latest_finds_nothing_where_there_is_nothing(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


@each_failing_rename
def test_a_rename_that_fails_loses_nothing(tmp_path, monkeypatch, failures, error):
    """What was there is in its place, or, if it cannot be put back, is found by the next reader."""
    path = make(tmp_path / "a", step=1)
    tried = let_renames_fail(monkeypatch, failures, error)
    with pytest.raises((CheckpointError, KeyboardInterrupt), match="no rename today"):
        make(path, step=2)
    assert len(tried) > max(failures)
    if failures == (1, 2):
        assert not path.exists()
    else:
        assert os.listdir(tmp_path) == ["a"]
    assert check_whole(path).step == 1


def test_latest_finds_what_a_killed_writer_was_replacing(tmp_path, monkeypatch):
    """Its path has nothing after the first of two renames; a reader moves it back."""
    path = make(tmp_path / "a", step=1)
    let_renames_fail(monkeypatch, (1, 2), OSError("no rename today"))
    with pytest.raises(CheckpointError, match="no rename today"):
        make(path, step=2)
    assert not path.exists()
    assert latest(tmp_path) == path
    assert check_whole(path).step == 1


def test_an_empty_folder_is_in_nobody_s_way(tmp_path):
    (tmp_path / "a").mkdir()
    with new_folder(tmp_path / "a", overwrite=False) as draft:
        write_manifest(draft, EMPTY)
    assert check_whole(tmp_path / "a") == EMPTY


def test_a_path_that_is_taken_is_an_error_before_the_body(tmp_path):
    path = make(tmp_path / "a")
    (tmp_path / "b").write_text("")
    for taken, found in ((path, "a folder"), (tmp_path / "b", "a file")):
        told = rf"at +{taken}\n +found +{found}\n(?s:.*)overwrite=True"
        with pytest.raises(CheckpointError, match=told), new_folder(taken, overwrite=False):
            raise AssertionError


def test_only_checkpoints_are_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("x")
    with (
        pytest.raises(CheckpointError, match=rf"overwrite=True replaces only a checkpoint\n +at +{tmp_path}/thesis\n"),
        new_folder(tmp_path / "thesis", overwrite=True),
    ):
        raise AssertionError
    assert (tmp_path / "thesis" / "chapter").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "a"
    with pytest.raises(CheckpointError, match=rf"at +{tmp_path}/file\n"), new_folder(below, overwrite=False):
        raise AssertionError
