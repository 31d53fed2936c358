"""Files and folders that appear whole, or not at all."""

import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.errors import CheckpointError
from plait.util import whole_writes
from plait.util.scratch import recover
from plait.util.whole_writes import remove_whole

THINGS = ["file", "folder"]
written_whole = functools.partial(whole_writes.written_whole, what="the thing", kind=CheckpointError)


def make(path, what, text):
    if what == "folder":
        path.mkdir()
        (path / "inner").mkdir()
        path = path / "inner" / "file"
    path.write_text(text)


def read(path):
    return (path / "inner" / "file" if path.is_dir() else path).read_text()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("what", THINGS)
def test_what_is_written_takes_the_place_of_what_was_there(tmp_path, what, is_there):
    if is_there:
        make(tmp_path / "place", what, "old")
    with written_whole(tmp_path / "place") as draft:
        make(draft, what, "new")
        assert names(tmp_path)[1:] == ["place"] * is_there
    assert read(tmp_path / "place") == "new"
    assert names(tmp_path) == ["place"]


@pytest.mark.parametrize(("before", "what"), [THINGS, THINGS[::-1]])
def test_a_file_never_takes_the_place_of_a_folder_nor_a_folder_that_of_a_file(tmp_path, what, before):
    make(tmp_path / "place", before, "old")
    with (
        pytest.raises(CheckpointError, match=rf"another kind\n +at +{tmp_path}/place\n +found +a {before}"),
        written_whole(tmp_path / "place") as draft,
    ):
        make(draft, what, "new")
    assert read(tmp_path / "place") == "old"
    assert names(tmp_path) == ["place"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_fault_of_the_disk_is_told_as_one(tmp_path, kind, code):
    """E20: by whatever exception a library raises for it; what was there is kept."""
    make(tmp_path / "place", "file", "old")
    expected = pytest.raises(CheckpointError, match=rf"at +{tmp_path}/place\n +found +.*{os.strerror(code)}")
    with expected, written_whole(tmp_path / "place"):
        raise OSError(code, os.strerror(code)) if kind is OSError else kind(f"I/O error: {os.strerror(code)}!")
    assert read(tmp_path / "place") == "old"
    assert names(tmp_path) == ["place"]


@pytest.mark.parametrize("before", [None, *THINGS])
@pytest.mark.parametrize("what", THINGS)
@pytest.mark.parametrize("stop", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_in_the_body_leaves_what_was_there(tmp_path, what, before, stop):
    if before is not None:
        make(tmp_path / "place", before, "old")
    with pytest.raises(stop), written_whole(tmp_path / "place") as draft:
        make(draft, what, "new")
        raise stop
    assert names(tmp_path) == ["place"] * (before is not None)
    assert before is None or read(tmp_path / "place") == "old"


@pytest.mark.parametrize(("stop", "told"), [(OSError, CheckpointError), (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_failure_between_the_two_renames_brings_the_old_folder_back(tmp_path, monkeypatch, stop, told):
    make(tmp_path / "place", "folder", "old")
    rename = os.rename

    def fail_for_the_draft(old, new):
        if Path(new) == tmp_path / "place" and Path(old).parent.name != "replaced":
            raise stop
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail_for_the_draft)
    with pytest.raises(told), written_whole(tmp_path / "place") as draft:
        make(draft, "folder", "new")
    assert read(tmp_path / "place") == "old"
    assert names(tmp_path) == ["place"]


KILLED = """
import os, signal, sys
from pathlib import Path
from plait.util.scratch import recover
from plait.errors import CheckpointError
from plait.util.whole_writes import written_whole
rename = os.rename
def killed_at_the_second(old, new):
    if Path(old).name == Path(new).name == "place" and Path(new).parent.name != "replaced":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(old, new)
os.rename = killed_at_the_second
with written_whole(Path(sys.argv[1]), "the thing", CheckpointError) as draft:
    draft.mkdir()
"""


@pytest.fixture
def replaced_in_part(tmp_path):
    """A folder whose writer was killed between the two renames."""
    make(tmp_path / "place", "folder", "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "place")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "place").exists()
    return tmp_path / "place"


@pytest.mark.slow
def test_a_reader_moves_back_what_a_killed_writer_was_replacing(replaced_in_part):
    recover(replaced_in_part)
    assert read(replaced_in_part) == "old"


@pytest.mark.slow
def test_the_next_writer_moves_it_back_before_it_begins(replaced_in_part):
    with pytest.raises(ZeroDivisionError), written_whole(replaced_in_part) as draft:
        assert read(replaced_in_part) == "old"
        make(draft, "folder", "new")
        raise ZeroDivisionError
    assert read(replaced_in_part) == "old"
    assert names(replaced_in_part.parent) == ["place"]


@pytest.mark.slow
def test_a_writer_of_another_path_leaves_it_alone(replaced_in_part):
    with written_whole(replaced_in_part.parent / "other") as draft:
        draft.write_text("new")
    assert not replaced_in_part.exists()
    recover(replaced_in_part)
    assert read(replaced_in_part) == "old"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc")
@pytest.mark.parametrize(
    ("what", "synced"),
    [("file", ["place"]), ("folder", ["place/inner/file", "place/inner", "place"])],
)
def test_everything_is_synced_before_it_is_renamed_and_its_name_after(tmp_path, monkeypatch, what, synced):
    events = []
    for function in ("rename", "replace"):
        original = getattr(os, function)
        monkeypatch.setattr(os, function, lambda old, new, f=original: (events.append("renamed"), f(old, new)))
    monkeypatch.setattr(os, "fsync", lambda file: events.append(os.readlink(f"/proc/self/fd/{file}")))
    with written_whole(tmp_path / "place") as draft:
        make(draft, what, "new")
    *before, last = [event.replace(f"{draft.parent}/", "") for event in events]
    assert (sorted(before[:-1]), before[-1], last) == (sorted(synced), "renamed", str(tmp_path))


def test_the_check_is_asked_before_and_after(tmp_path):
    asked = []

    def check():
        asked.append(names(tmp_path))
        if (tmp_path / "place").exists():
            raise CheckpointError("somebody was faster")

    with pytest.raises(CheckpointError, match="faster"), written_whole(tmp_path / "place", check=check) as draft:
        draft.write_text("new")
        (tmp_path / "place").write_text("theirs")
    assert [len(each) for each in asked] == [0, 2]
    assert read(tmp_path / "place") == "theirs"


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_a_place_that_cannot_be_written_to_is_told_before_the_body(tmp_path, parent):
    (tmp_path / "file").write_text("")
    expected = pytest.raises(
        CheckpointError, match=rf"at +{tmp_path}/{parent}\n +found +(No such file|Not a directory)"
    )
    with expected, written_whole(tmp_path / parent / "place"):
        pytest.fail("the body ran")


def test_folders_above_are_made_when_asked(tmp_path):
    with written_whole(tmp_path / "a" / "b" / "place", parents=True) as draft:
        draft.write_text("new")
    assert read(tmp_path / "a" / "b" / "place") == "new"


@pytest.mark.parametrize("what", THINGS)
def test_a_place_is_removed_in_one_step(tmp_path, monkeypatch, what):
    make(tmp_path / "place", what, "old")
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # the process stops here
    remove_whole(tmp_path / "place")
    assert not (tmp_path / "place").exists()
