"""Which clock decides: the one that nobody sets, wherever time is measured or waited for."""

import ast
import itertools
import types
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.checkpoint import Checkpoints, Keep, orbax
from plait.training import Batches, fit

SOURCE = Path(plait.__file__).parent
# The date of a checkpoint, and of an event.
DATES = {"checkpoint/orbax.py", "training/loop/loggers.py"}


def reads_the_date(path):
    tree = ast.parse(path.read_text("utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "time"]
    return bool(froms or {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"} & {*calls})


@pytest.mark.slow
def test_the_date_is_read_where_a_date_is_meant_alone():
    assert {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if reads_the_date(path)} == DATES


@pytest.mark.slow
@pytest.mark.parametrize("dates", [[5e9, 1.0], [1.0, 5e9], [5e9, 4e9, 3e9, 2e9, 1e9]], ids=str)
def test_a_clock_that_is_set_while_a_run_trains_and_saves_changes_nothing(tmp_path, monkeypatch, dates):
    """The newest checkpoint is the one of the highest step. (Orbax' own time-outs, of 20 minutes, go by the date.)"""
    following = itertools.cycle(dates)
    monkeypatch.setattr(orbax, "time", types.SimpleNamespace(time=lambda: next(following)))
    monkeypatch.setenv("PLAIT_GRACE", "100")

    def run(steps):
        model = plait.Linear(1, 1, rngs=plait.Rngs(0))

        def step(model, batch):
            model.kernel.value += batch.sum()

        with Checkpoints(tmp_path, keep=Keep(last=2)) as checkpoints:
            fitted = fit(step, {"model": model}, Batches([np.ones(1)]), steps=steps, checkpoints=checkpoints,
                         save_every=1, data_timeout=100, show=False)  # fmt: skip
            return fitted.step, [saved.step for saved in checkpoints.all()], model.kernel.value.item()

    step, saved, before = run(5)
    assert (step, saved) == (5, [4, 5])
    step, saved, after = run(6)
    assert (step, saved) == (6, [5, 6])
    assert after == pytest.approx(before + 1)
