"""Saves that the program does not wait for, at its end."""

import subprocess
import sys
import textwrap

import jax.numpy as jnp
import pytest

import plait
from plait.checkpoint import restore
from tests.sampling import slow_but

PROGRAM = """
    import os, sys, time
    import jax.numpy as jnp
    import plait
    from plait.checkpoint import Checkpoints, orbax
    checkpoints = Checkpoints(sys.argv[1])
    arrive = orbax.Saving.arrive
    def late(saving):
        time.sleep(1)
        if sys.argv[2] == "full":
            raise OSError("No space left on device")
        arrive(saving)
    orbax.Saving.arrive = late
    checkpoints.save(1, {"w": plait.Param(jnp.arange(1_000.0))})
    if sys.argv[2] == "dropped":
        del checkpoints
    if sys.argv[2] == "fails":
        raise RuntimeError("the program itself")
    if sys.argv[2] == "worker":
        import multiprocessing
        worker = multiprocessing.get_context("fork").Process(target=time.monotonic)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
"""


def run(folder, how):
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), str(folder), how]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("how", slow_but(["ends"], ["ends", "dropped", "fails", "worker"]))
def test_a_program_ends_after_its_last_save(tmp_path, how):
    done = run(tmp_path, how)
    assert done.returncode == (how == "fails"), done.stderr
    assert "schedule" not in done.stderr
    variable = plait.Param(jnp.zeros(1_000))
    restore(tmp_path / "step-00000001", {"w": variable})
    assert variable[...].tolist() == [*range(1_000)]


@pytest.mark.slow
def test_a_save_that_fails_at_the_end_is_told(tmp_path):
    done = run(tmp_path, "full")
    assert "a checkpoint could not be written" in done.stderr
    assert "No space left on device" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.lock"]
