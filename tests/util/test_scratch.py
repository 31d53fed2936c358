"""Temporary folders, and what killed writers leave behind."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from plait.util import scratch
from plait.util.scratch import scratch_folder

WRITER = """
import sys
from pathlib import Path
from plait.util.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as scratch:
    (scratch / "half").write_text("x")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that writes to ``tmp_path / 'step-1'``, and waits."""
    arguments = [sys.executable, "-c", WRITER, str(tmp_path / "step-1")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path, writer):
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert len(left(tmp_path)) == 1
    with scratch_folder(tmp_path / "step-2"):
        assert len(left(tmp_path)) == 2  # that of another place stays
    with scratch_folder(tmp_path / "step-1") as scratch:
        assert left(tmp_path) == [scratch.name]
    assert left(tmp_path) == []


@pytest.mark.slow
def test_what_a_writer_holds_is_left_alone(tmp_path, writer):
    before = left(tmp_path)
    with scratch_folder(tmp_path / "step-1"):
        pass
    assert left(tmp_path) == before
    assert (tmp_path / before[0] / "half").read_text() == "x"


def taken_away(scratch, *, draft):
    """What a folder has in it while ``step-1`` is being replaced."""
    (scratch / "replaced").mkdir()
    (scratch / "replaced" / "step-1").write_text("old")
    if draft:
        (scratch / "step-1").write_text("new")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "taken", "expected"),
    [(True, False, "old"), (True, True, "theirs"), (False, True, "theirs"), (False, False, None)],
)
def test_what_a_killed_writer_had_taken_away_is_put_back(tmp_path, writer, draft, taken, expected):
    """Unless its new content was in its place already; and what others have put there is not touched."""
    (scratch,) = tmp_path.iterdir()
    taken_away(scratch, draft=draft)
    if taken:
        (tmp_path / "step-1").write_text("theirs")
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    with scratch_folder(tmp_path / "step-1"):
        pass
    assert (tmp_path / "step-1").read_text() == expected if expected else not (tmp_path / "step-1").exists()
    assert scratch.exists() == (draft and taken)  # then both may be needed


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("was_replaced", [True, False])
def test_a_block_that_fails_puts_back_what_it_had_taken_away(tmp_path, error, was_replaced):
    with pytest.raises(error), scratch_folder(tmp_path / "step-1") as scratch:
        (scratch / "half").write_text("x")
        if was_replaced:
            taken_away(scratch, draft=True)
        raise error
    assert left(tmp_path) == ["step-1"] * was_replaced


@pytest.mark.parametrize("content", ["theirs", "writing.unlocked"])
@pytest.mark.parametrize("name", [".step-1.abc.partial", ".step-1.partial", "step-1.partial"])
def test_a_folder_without_a_lock_may_be_somebody_s(tmp_path, name, content):
    (tmp_path / name / content).mkdir(parents=True)
    with scratch_folder(tmp_path / "step-1"):
        pass
    assert left(tmp_path) == [name]


def test_what_a_thread_writes_after_its_writer_was_interrupted_is_removed_by_the_next(tmp_path):
    """As TensorStore does after Ctrl-C: it makes the folders that it writes to."""
    with scratch_folder(tmp_path / "step-1") as interrupted:
        pass
    (interrupted / "step-1" / "arrays").mkdir(parents=True)
    with scratch_folder(tmp_path / "step-1"):
        pass
    assert left(tmp_path) == []


def test_a_folder_that_another_writer_took_for_abandoned_is_made_anew(tmp_path, monkeypatch):
    """Between making a folder and locking it, another writer may lock it, to remove it."""
    flock, calls = scratch.fcntl.flock, []

    def taken_at_first(file, flags):
        calls.append(file)
        if len(calls) == 1:
            raise BlockingIOError
        flock(file, flags)

    monkeypatch.setattr(scratch.fcntl, "flock", taken_at_first)
    with scratch_folder(tmp_path / "a") as folder:
        (folder / "content").write_text("whole")
        assert len(calls) == 2


@pytest.mark.skipif(scratch.fcntl is None, reason="this system has no locks that end with their process")
def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another writer may lock the new file first, remove the folder, and release its lock."""
    flock, removed = scratch.fcntl.flock, []

    def late(file, how):
        for folder in () if removed else tmp_path.glob(".target.*.partial"):
            removed.append(folder)
            shutil.rmtree(folder)
        return flock(file, how)

    monkeypatch.setattr(scratch.fcntl, "flock", late)
    with scratch_folder(tmp_path / "target") as folder:
        assert removed
        assert folder not in removed
        assert folder.is_dir()


FORKS = """
import os, sys, time
from pathlib import Path
from plait.util.scratch import hold, is_held_here
lock = hold(Path(sys.argv[1]), create=True)
child = os.fork()
if child == 0:
    assert not is_held_here(Path(sys.argv[1]))
    other = os.open(os.devnull, os.O_RDONLY)  # may have the number of the lock's file
    lock.release()
    os.fstat(other)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert is_held_here(Path(sys.argv[1]))
try:
    hold(Path(sys.argv[1]), create=True)
except BlockingIOError:
    print("held")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_no_part_in_a_lock(tmp_path):
    arguments = [sys.executable, "-W", "error", "-c", FORKS, str(tmp_path / "lock")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("held\n", "")


def test_a_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / "theirs").write_text("whole")
    (tmp_path / "run.lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic links"):
        scratch.hold(tmp_path / "run.lock", create=True)


def test_a_pipe_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "run.lock")
    with pytest.raises(OSError, match="a pipe"):
        scratch.hold(tmp_path / "run.lock", create=True)
