"""Disks that are full, read-only or gone, and files that are not what was written."""

import functools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints, Keep, load_state, orbax
from plait.checkpoint.layout import MANIFEST
from plait.errors import CheckpointError
from tests.sampling import slow_but

ROOT = Path(__file__).parents[2]


def model(value=1.0):
    return plait.Dict(
        w=plait.Param(jnp.full((64, 8), value)),
        b=plait.BatchStat(jnp.arange(8.0) * value),
        n=plait.Variable(jnp.int32(value)),
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(folder, background=False) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, model(float(step)))
    return folder


def files(folder):
    newest = folder / "step-00000002"
    return sorted(file.relative_to(newest).as_posix() for file in newest.rglob("*") if file.is_file())


def flipped(file, _):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def swapped(file, other):
    other = max((each for each in other if each != file), key=lambda each: each.stat().st_size)
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


DAMAGES = {
    "truncated": lambda file, _: file.write_bytes(file.read_bytes()[:-1]),
    "flipped": flipped,
    "swapped": swapped,
    "deleted": lambda file, _: file.unlink(),
    "longer": lambda file, _: file.write_bytes(file.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", slow_but(["flipped"], DAMAGES))
def test_whichever_file_is_damaged_it_is_refused_and_the_one_before_is_taken(tmp_path, saved, damage):
    for number, name in enumerate(files(saved)):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        newest = folder / "step-00000002"
        before = {each: (newest / each).read_bytes() for each in files(saved)}
        DAMAGES[damage](newest / name, [newest / each for each in files(saved)])
        changed = {
            each
            for each, text in before.items()
            if not (newest / each).exists() or (newest / each).read_bytes() != text
        }
        if not changed:
            continue  # two equal files
        own = model(7.0)
        for read in (functools.partial(plait.checkpoint.restore, node=own), load_state):
            with pytest.raises(CheckpointError) as caught:
                read(newest)
            assert MANIFEST in changed or any(each in str(caught.value) for each in changed), str(caught.value)
        assert own["n"].value == 7
        with Checkpoints(folder) as checkpoints:
            assert checkpoints.restore(own).step == 1
        assert own["n"].value == 1
        np.testing.assert_array_equal(own["w"].value, 1.0)


def in_namespace(commands, program, folder):
    """Run a program that sees mounts of its own."""
    script = f"{commands}\nexec {sys.executable} -c '{textwrap.dedent(program)}' {folder}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", script], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("no mounts of its own here")
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_mounts = pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare on this system")

FULL = """
import sys, plait, numpy as np, jax.numpy as jnp
from plait.checkpoint import Checkpoints, Keep
from plait.errors import CheckpointError
small = plait.Param(jnp.ones(4))
# Random numbers, which cannot be compressed into the room that there is.
large = plait.Param(jnp.asarray(np.random.default_rng(0).random(2_000_000, dtype=np.float32)))
checkpoints = Checkpoints(sys.argv[1], keep=Keep(last=2))
checkpoints.save(1, {"w": small})
checkpoints.wait()
for background in (True, False):
    checkpoints.background = background
    try:
        checkpoints.save(2, {"w": large})
        checkpoints.save(3, {"w": small})
    except CheckpointError as error:
        print("told")
    else:
        print("not told")
checkpoints.save(4, {"w": small})
print([saved.step for saved in checkpoints.all()], checkpoints.restore({"w": small}).step)
import pathlib
print([path.name for path in pathlib.Path(sys.argv[1]).glob(".*")])
"""


@pytest.mark.slow
@needs_mounts
def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path):
    out = in_namespace(f"mount -t tmpfs -o size=4m tmpfs {tmp_path}", FULL, tmp_path)
    assert out.splitlines() == ["told", "told", "[1, 4] 4", "[]"]


READ_ONLY = """
import os, sys, plait, jax.numpy as jnp
from plait.checkpoint import Checkpoints, latest, restore
from plait.errors import CheckpointError
w = plait.Param(jnp.ones(4))
with Checkpoints(sys.argv[1]) as checkpoints:
    checkpoints.save(1, w)
os.system(f"mount -o remount,ro {sys.argv[1]}")
for write in (lambda: Checkpoints(sys.argv[1]), lambda: plait.checkpoint.save(sys.argv[1] + "/2", w)):
    try:
        write()
    except CheckpointError as error:
        print("Read-only" in str(error))
print(restore(latest(sys.argv[1]), w).step)
"""


@pytest.mark.slow
@needs_mounts
def test_a_read_only_disk_is_told_and_can_be_read(tmp_path):
    out = in_namespace(f"mount -t tmpfs tmpfs {tmp_path}", READ_ONLY, tmp_path)
    assert out.splitlines() == ["True", "True", "1"]


def test_a_folder_that_vanishes_is_made_again(tmp_path):
    folder = tmp_path / "run"
    with Checkpoints(folder, keep=Keep(last=2)) as checkpoints:
        checkpoints.save(1, model())
        checkpoints.wait()
        shutil.rmtree(folder)
        checkpoints.save(2, model())
        assert [saved.step for saved in checkpoints.all()] == [2]
        assert os.listdir(folder)


def test_a_folder_that_vanishes_is_locked_again(tmp_path):
    """The lock went with the folder, and a second run could write into the new one."""
    folder = tmp_path / "run"
    with Checkpoints(folder) as checkpoints:
        shutil.rmtree(folder)
        checkpoints.save(1, model())
        with pytest.raises(CheckpointError, match="another Checkpoints of this process is writing"):
            Checkpoints(folder)
    Checkpoints(folder).close()


def test_a_folder_that_another_run_has_made_again_is_not_written(tmp_path):
    folder = tmp_path / "run"
    with Checkpoints(folder) as checkpoints:
        shutil.rmtree(folder)
        with Checkpoints(folder):
            with pytest.raises(CheckpointError, match="another Checkpoints of this process is writing"):
                checkpoints.save(1, model())
            assert os.listdir(folder) == ["run.lock"]
        checkpoints.save(1, model())
        assert [saved.step for saved in checkpoints.all()] == [1]


def test_a_folder_that_vanishes_while_it_is_written_is_an_error_that_names_it(tmp_path, monkeypatch):
    folder, write = tmp_path / "run", orbax.write_manifest
    monkeypatch.setattr(orbax, "write_manifest", lambda *given: shutil.rmtree(folder) or write(*given))
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, model())
        with pytest.raises(CheckpointError, match=rf"could not be written\n +at +{folder}\n"):
            checkpoints.wait()
        monkeypatch.undo()
        checkpoints.save(2, model())
        assert [saved.step for saved in checkpoints.all()] == [2]


def test_a_slow_disk_holds_up_the_next_save_and_nothing_before(tmp_path, monkeypatch):
    """What is saved is what the model was, however much later it is written."""
    may_write, write = threading.Event(), orbax.write_manifest
    monkeypatch.setattr(orbax, "write_manifest", lambda *given: may_write.wait(60) and write(*given))
    own = model()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, own)
        own["n"].value = jnp.int32(5)  # a step, while the disk is busy
        assert not (tmp_path / "step-00000001").exists()
        threading.Timer(0.2, may_write.set).start()
        checkpoints.save(2, own)
        assert may_write.is_set()
        assert (tmp_path / "step-00000001").is_dir()
        for step, n in ((1, 1), (2, 5)):
            checkpoints.restore(own, step=step)
            assert own["n"].value == n


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_folder_that_vanishes_under_arrays_that_are_never_written_is_an_error_at_once(
    tmp_path, monkeypatch, is_made_again
):
    """TensorStore sometimes waits without end then. So may the process: nothing waits for its thread."""
    never, wait_for = threading.Event(), orbax._wait_for
    monkeypatch.setattr(orbax, "_wait_for", lambda checkpointer: never.wait())
    monkeypatch.setattr(orbax, "_BETWEEN_LOOKS", 0.1)
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, model())
        os.rename(tmp_path / "run", tmp_path / "moved")
        if is_made_again:  # as TensorStore does for what it writes
            shutil.copytree(tmp_path / "moved", tmp_path / "run", dirs_exist_ok=True)
        with pytest.raises(CheckpointError, match=r"moved or removed while it was written\n +at .*step-00000001\n"):
            checkpoints.wait()
        monkeypatch.setattr(orbax, "_wait_for", wait_for)
        checkpoints.save(2, model())
        assert [saved.step for saved in checkpoints.all()] == [2]
    never.set()
