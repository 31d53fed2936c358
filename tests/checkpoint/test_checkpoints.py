"""The checkpoints of a run: in the background, kept by a rule, one run to a folder."""

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints, Keep, layout, orbax, reading, save
from plait.errors import CheckpointError, CheckpointWarning, LostUpdateWarning
from plait.training import Batches
from tests.compare import assert_same, readable
from tests.sampling import slow_but


def values(node):
    """A copy of all values on the host, keys as their bits."""
    return jax.tree.map(lambda leaf: np.array(readable(leaf)), plait.to_pure_dict(plait.state(node)))


class Net(plait.Module):
    def __init__(self, size=2_000, seed=0):
        rngs = plait.Rngs(seed)
        self.layers = plait.List([plait.Linear(size, 8, rngs=rngs) for _ in range(3)])
        self.count = plait.Variable(jnp.zeros((), jnp.int32))
        self.rngs = rngs


@plait.jit(donate=True)
def grow(model):
    for layer in model.layers:
        layer.kernel.value = layer.kernel.value + 1
    model.count.value += 1


@pytest.mark.slow
@pytest.mark.parametrize("background", slow_but([True], [True, False]))
def test_what_is_saved_is_what_the_objects_were_when_save_was_called(tmp_path, background):
    model, expected = Net(), {}
    with Checkpoints(tmp_path, keep=Keep(last=None), background=background) as checkpoints:
        for step in range(6):
            expected[step] = values(model)
            checkpoints.save(step, {"model": model})
            for _ in range(3):
                grow(model)  # gives away the buffers that are being written
        for step, wanted in expected.items():
            fresh = Net(seed=1)
            checkpoints.restore({"model": fresh}, step=step)
            assert_same(values(fresh), wanted)


@pytest.mark.slow
def test_the_rule_is_applied_after_each_save(tmp_path):
    model = Net(2)
    with Checkpoints(tmp_path, keep=Keep(last=2, best=1, metric="loss", every=4)) as checkpoints:
        for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, 2.0, 6.0, 7.0]):
            checkpoints.save(step, model, metrics={"loss": loss})
        assert [saved.step for saved in checkpoints.all()] == [0, 1, 4, 5, 6]
        assert checkpoints.best().step == 1
    assert sorted(path.name for path in tmp_path.iterdir() if not path.is_dir()) == ["run.lock"]


def test_the_error_of_a_failed_save_is_raised_by_the_next_call_and_once(tmp_path, monkeypatch):
    model = Net(2)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model)
    checkpoints.wait()
    with monkeypatch.context() as broken:

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        broken.setattr(orbax, "write_manifest", full)
        checkpoints.save(2, model)
        with pytest.raises(CheckpointError, match=rf"could not be written\n +at +{tmp_path}\n") as caught:
            checkpoints.save(3, model)
    assert "No space left" in caught.value.parts["found"]
    checkpoints.save(4, model)
    assert [saved.step for saved in checkpoints.all()] == [1, 4]
    assert not list(tmp_path.glob(".*"))
    checkpoints.close()


def test_the_newest_intact_one_is_restored(tmp_path):
    model = Net(2)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(model) is None
        for step in (1, 2, 3):
            checkpoints.save(step, model, extra={"note": [step, None, {"x": 0.5}]})
        checkpoints.wait()
        (tmp_path / "step-00000003" / "plait.json").unlink()
        manifest = checkpoints.restore(model)
        assert manifest.step == 2
        assert manifest.extra == {"note": [2, None, {"x": 0.5}]}
        for step in (1, 2):
            (tmp_path / f"step-{step:08}" / "arrays" / "_METADATA").write_text("{}")
        before = values(model)
        with pytest.raises(CheckpointError, match=rf"no intact checkpoint\n +at +{tmp_path}\n") as caught:
            checkpoints.restore(model)
        assert "_METADATA" in caught.value.parts["found"]
        assert_same(values(model), before)
        with pytest.raises(CheckpointError, match="of step 7") as caught:
            checkpoints.restore(model, step=7)
        assert "1, 2" in caught.value.parts["found"]


def test_the_newest_is_compared_with_its_manifest_once(tmp_path, monkeypatch):
    """Large files are not read twice before they are restored."""
    model = Net(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model)
        checkpoints.wait()
        seen, checksum = [], layout._checksum
        monkeypatch.setattr(layout, "_checksum", lambda file, make: [seen.append(file), checksum(file, make)][1])
        checkpoints.restore(model)
    files = [file for file in (tmp_path / "step-00000001").rglob("*") if file.is_file() and file.name != "plait.json"]
    assert sorted(seen) == sorted(files)


def test_a_structure_that_does_not_fit_is_told_before_any_array_is_read(tmp_path, monkeypatch):
    path = save(tmp_path / "one", Net(2))

    def read(*_):
        raise AssertionError("a file was read")

    monkeypatch.setattr(reading, "read_arrays", read)
    monkeypatch.setattr(orbax, "check_whole", read)
    with pytest.raises(CheckpointError, match="does not fit"):
        plait.checkpoint.restore(path, Net(3))


HOLDER = """
    import os, sys, time
    from plait.checkpoint import Checkpoints
    checkpoints = Checkpoints(sys.argv[1])
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_run_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        number = process.stdout.readline().strip()
        with pytest.raises(CheckpointError, match=rf"another run.*\n +at +{tmp_path}\n") as caught:
            Checkpoints(tmp_path)
        assert number in caught.value.parts["found"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.communicate()
    Checkpoints(tmp_path).close()


def test_a_folder_that_cannot_be_written_to_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=rf"cannot be written.*\n +at +{tmp_path}/file\n"):
        Checkpoints(tmp_path / "file")


def spoil(path, how):
    if how == "a file":
        shutil.rmtree(path)
        path.write_text("x")
    elif how == "a dangling link":
        shutil.rmtree(path)
        path.symlink_to("nowhere")
    else:
        (path / "plait.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["no manifest", "a file", "a dangling link"])
def test_what_is_no_checkpoint_is_moved_aside_by_a_save_of_its_step(tmp_path, how):
    """It used to fail at every restart. (issue O)"""
    model = Net(2)
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, model)
    spoil(tmp_path / "step-00000002", how)
    for number in (1, 2):
        with Checkpoints(tmp_path) as checkpoints:
            assert checkpoints.restore(model).step == 1
            with pytest.warns(CheckpointWarning, match=r"moved aside\n +at +.*step-00000002\n") as told:
                checkpoints.save(2, model)
        assert f"now step-00000002.damaged-{number}\n" in str(told[0].message)
        assert [each.filename for each in told] == [__file__]
        assert os.path.lexists(tmp_path / f"step-00000002.damaged-{number}")
        assert steps_and_names(tmp_path) == [1, 2, *(f"2.damaged-{each + 1}" for each in range(number))]
        spoil(tmp_path / "step-00000002", how)


def steps_and_names(folder):
    """The names of steps as numbers, with what follows them."""
    names = [path.name.removeprefix("step-").lstrip("0") for path in folder.iterdir() if path.name.startswith("step")]
    return sorted((int(name) if name.isdigit() else name for name in names), key=str)


@pytest.mark.slow
def test_what_was_moved_aside_is_never_removed(tmp_path):
    model = Net(2)
    (tmp_path / "step-00000001" / "arrays").mkdir(parents=True)
    with Checkpoints(tmp_path, keep=Keep(last=1)) as checkpoints:
        with pytest.warns(CheckpointWarning, match="moved aside"):
            checkpoints.save(1, model)
        for step in (2, 3):
            checkpoints.save(step, model)
    assert steps_and_names(tmp_path) == ["1.damaged-1", 3]


def test_an_old_one_that_cannot_be_removed_is_no_failed_save(tmp_path, monkeypatch):
    model = Net(2)
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=1))
    checkpoints.save(1, model)
    checkpoints.wait()
    with monkeypatch.context() as broken:

        def denied(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        broken.setattr("plait.checkpoint.checkpoints.remove_whole", denied)
        checkpoints.save(2, model)
        with pytest.warns(CheckpointWarning, match=r"not be removed; the new one is written\n +at .*step-00000001\n"):
            checkpoints.wait()
    checkpoints.wait()  # it is told once
    assert [saved.step for saved in checkpoints.all()] == [1, 2]
    checkpoints.save(3, model)
    checkpoints.close()
    assert steps_in(tmp_path) == [3]


def test_one_of_the_same_step_is_replaced(tmp_path):
    model = Net(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model)
        model.count.value += 5
        checkpoints.save(1, model)
        fresh = Net(2)
        checkpoints.restore(fresh)
        assert fresh.count.value == 5


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    program = """
        import os, sys, signal
        import plait
        from plait.checkpoint import Checkpoints, orbax
        model = plait.Linear(2, 2, rngs=plait.Rngs(0))
        checkpoints = Checkpoints(sys.argv[1])
        checkpoints.save(1, model)
        checkpoints.wait()
        orbax.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.save(2, model)
        checkpoints.wait()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=False)
    assert list(tmp_path.glob(".*.partial"))
    model = plait.Linear(2, 2, rngs=plait.Rngs(1))
    with Checkpoints(tmp_path) as checkpoints:
        assert not list(tmp_path.glob(".*.partial"))
        assert checkpoints.restore(model).step == 1


@pytest.mark.slow
def test_the_end_of_a_program_tells_what_failed_and_waits_for_nothing_that_was_abandoned():
    program = """
        import threading
        from plait.checkpoint.writer import Writer
        Writer(lambda: 1 / 0, "fails").start()
        waits = Writer(threading.Event().wait, "waits")
        waits.start()
        waits.abandon()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "a checkpoint could not be written at the end of the program" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr


class Whole(plait.Module):
    """What the stored run in tests/data was made of: a stack, or the same layers in a list."""

    def __init__(self, form, fill=0.0):
        self.blocks = form([plait.Linear(2, 2, use_bias=False, rngs=plait.Rngs(0)) for _ in range(3)])
        for number in range(3):
            self.blocks[number].kernel[...] = jnp.full((2, 2), fill + number)
        self.rngs = plait.Rngs(int(fill))


def objects_of(form, fill=0.0):
    model = Whole(form, fill)
    averages = plait.EMA(model, 0.5, only=plait.Param)
    return {
        "model": model,
        "averages": averages,
        "scale": plait.DynamicLossScale(growth_interval=2),
        "data": Batches("abc"),
    }


STORED = Path(__file__).parents[1] / "data" / "run-0.1.0"


def write_stored():
    """As version 0.1.0 of plait wrote it."""
    objects = objects_of(plait.Stack, 5.0)
    next(objects["data"])
    with Checkpoints(STORED) as checkpoints:
        checkpoints.save(7, objects, metrics={"eval/loss": 0.25}, extra={"callbacks": {"EarlyStop": {"worse": 2}}})


@pytest.mark.parametrize("form", [plait.Stack, plait.List])
def test_the_run_of_release_0_1_0_is_resumed_for_ever(tmp_path, form):
    """Position in the data, extra data and a stack among it, which may be a list now."""
    folder, objects = shutil.copytree(STORED, tmp_path / "run"), objects_of(form)
    with Checkpoints(folder) as checkpoints:
        manifest = checkpoints.restore(objects)
    assert (manifest.step, dict(manifest.metrics)) == (7, {"eval/loss": 0.25})
    assert manifest.extra == {"callbacks": {"EarlyStop": {"worse": 2}}}
    assert manifest.time > 1.7e9
    assert next(objects.pop("data")) == "b"
    expected = objects_of(form, 5.0)
    expected.pop("data")
    assert_same(values(objects), values(expected))


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


@pytest.mark.slow
def test_the_one_just_written_stays_however_low_its_step_is(tmp_path):
    """After a run was rolled back, the later ones are still there."""
    model = Net(2)
    with Checkpoints(tmp_path, keep=Keep(last=3)) as checkpoints:
        for step in (200, 300, 400):
            checkpoints.save(step, model)
        checkpoints.restore(model, step=200)
        with pytest.warns(LostUpdateWarning, match="next start resumes from a later step") as told:
            checkpoints.save(250, model)
        assert [each.filename for each in told] == [__file__]
        assert "step-00000300, step-00000400" in str(told[0].message)
        checkpoints.save(150, model)  # tells it once
        checkpoints.wait()
        assert steps_in(tmp_path) == [150, 250, 300, 400]
        checkpoints.save(500, model)
        checkpoints.wait()
        assert steps_in(tmp_path) == [300, 400, 500]


def test_a_newer_one_under_another_name_is_told_too(tmp_path):
    """The next start resumes from it."""
    model = Net(2)
    save(tmp_path / "best", model, step=9)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(9, model)
        with pytest.warns(LostUpdateWarning, match=rf"at +{tmp_path}\n +found +best"):
            checkpoints.save(8, model)


def test_a_save_does_not_wait_for_manifests_of_earlier_steps(tmp_path, monkeypatch):
    """They may be long: the thread that writes reads them."""
    model, read, manifest_at = Net(2), set(), layout.manifest_at
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model)
        checkpoints.wait()
        monkeypatch.setattr(
            layout, "manifest_at", lambda place: read.add(threading.current_thread()) or manifest_at(place)
        )
        checkpoints.save(2, model)
        checkpoints.wait()
    assert read
    assert threading.main_thread() not in read


@pytest.mark.slow
def test_damaged_newer_ones_are_no_reason_to_remove_others_or_to_warn(tmp_path):
    model = Net(2)
    with Checkpoints(tmp_path, keep=Keep(last=3)) as checkpoints:
        for step in (1, 7, 8):
            checkpoints.save(step, model)
    for step in (7, 8):
        (tmp_path / f"step-{step:08}" / "arrays" / "_METADATA").write_text("{}")
    with Checkpoints(tmp_path, keep=Keep(last=2)) as checkpoints:
        assert checkpoints.restore(model).step == 1
        for step in (2, 3, 4):
            checkpoints.save(step, model)
        checkpoints.wait()
        assert steps_in(tmp_path) == [3, 4, 7, 8]
        checkpoints.save(7, model)  # intact again
        checkpoints.save(9, model)
        checkpoints.wait()
        assert steps_in(tmp_path) == [7, 8, 9]


@pytest.mark.slow
def test_only_folders_that_the_run_wrote_are_counted_and_removed(tmp_path):
    model = Net(2)
    folder = tmp_path / "run"
    with Checkpoints(folder, keep=Keep(last=2)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, model)
        checkpoints.wait()
        shutil.copytree(folder / "step-00000002", folder / "best-so-far")
        shutil.copytree(folder / "step-00000002", folder / "step-00000003")
        save(folder / "pretrained", model, step=0)
        save(tmp_path / "elsewhere" / "step", model, step=0)
        (folder / "latest").symlink_to("step-00000002")
        (folder / "step-00000000").symlink_to(tmp_path / "elsewhere" / "step")
        for step in (4, 5):
            checkpoints.save(step, model)
        steps = [saved.step for saved in checkpoints.all()]
    others = ["best-so-far", "latest", "pretrained", "step-00000000", "step-00000003"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*others, "run.lock", "step-00000004", "step-00000005"]
    )
    assert steps == [0, 0, 2, 2, 4, 5]  # what can be read is listed


def test_a_folder_held_by_this_process_is_told_as_such(tmp_path):
    with Checkpoints(tmp_path), pytest.raises(CheckpointError, match="another Checkpoints of this process") as caught:
        Checkpoints(tmp_path)
    assert "close()" in caught.value.parts["do"]


def test_a_save_after_close_locks_the_folder_again(tmp_path):
    model = Net(2)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.close()
    with Checkpoints(tmp_path), pytest.raises(CheckpointError, match="another Checkpoints of this process"):
        checkpoints.save(1, model)
    checkpoints.save(1, model)
    with pytest.raises(CheckpointError, match="another Checkpoints of this process"):
        Checkpoints(tmp_path)
    checkpoints.close()
    Checkpoints(tmp_path).close()


def test_one_that_is_no_longer_used_releases_the_folder(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Net(2))
    checkpoints.wait()
    del checkpoints
    gc.collect()
    with Checkpoints(tmp_path) as checkpoints:
        assert [saved.step for saved in checkpoints.all()] == [1]


FORKS = """
    import os, sys, time
    from plait.checkpoint import Checkpoints
    checkpoints = Checkpoints(sys.argv[1])
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_of_a_killed_run_does_not_hold_its_lock(tmp_path):
    """A worker that loads data, say."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKS), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(process.stdout.readline())
    try:
        with pytest.raises(CheckpointError, match="another run"):
            Checkpoints(tmp_path)
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        Checkpoints(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_checkpoint_that_takes_longer_than_the_grace_period_is_told_in_advance(tmp_path, monkeypatch):
    """Once, by the first that does: whoever ends the run will not wait for it."""
    monkeypatch.setenv("PLAIT_GRACE", "1000")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": plait.Param(1.0)})
        checkpoints.wait()
        monkeypatch.setenv("PLAIT_GRACE", "0")
        checkpoints.save(2, {"x": plait.Param(1.0)})
        with pytest.warns(CheckpointWarning, match=r"takes longer(?s:.*)the last checkpoint(?s:.*)grace period"):
            checkpoints.wait()
        checkpoints.save(3, {"x": plait.Param(1.0)})


def test_another_thread_may_wait_for_a_save_as_soon_as_it_begins(tmp_path):
    """The evaluation of ``fit`` does that while a signal saves in a thread; then nothing was written."""

    class Awaited(Checkpoints):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "_writer" and value is not None:
                self.wait()

    with Awaited(tmp_path) as checkpoints:
        checkpoints.save(1, {"p": plait.Param(1.0)})
        assert [each.step for each in checkpoints.all()] == [1]
