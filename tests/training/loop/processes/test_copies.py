"""Copies that begin with different values; what two processes do is in tests/faults/test_joint_runs.py."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import CheckpointWarning
from plait.training.loop.processes.copies import _digests, _warn


class Noisy(plait.Module):
    def __init__(self, seed, scale=1.0):
        self.linear = plait.Linear(2, 3, rngs=plait.Rngs(0))
        self.scale = plait.Param(jnp.full(2, scale))
        self.rngs = plait.Rngs(noise=seed)

    def __call__(self, x):
        return x + jax.random.normal(jax.random.fold_in(self.rngs.noise(), jax.process_index()), x.shape)


def as_of_process(monkeypatch, objects):
    """The checksums of objects that are copies, as in a run of several processes."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "plait.checkpoint.leaf_descriptions._is_of_one_process", lambda value: isinstance(value, jax.Array)
        )
        return _digests(objects)


def test_what_differs_is_named_with_the_processes(monkeypatch):
    of_all = [
        as_of_process(monkeypatch, {"model": Noisy(seed, scale)})
        for seed, scale in [(0, 1.0), (0, 1.0), (1, 1.0), (2, 5)]
    ]
    with pytest.warns(CheckpointWarning, match="copies with different values") as caught:
        _warn(of_all)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "at        model.rngs.noise.key, model.scale\n" in text
    assert "found     other values in processes 2, 3\n" in text


def test_equal_copies_are_not_told_of(monkeypatch, recwarn):
    _warn([as_of_process(monkeypatch, {"model": Noisy(0)})] * 2)
    assert [each for each in recwarn if issubclass(each.category, CheckpointWarning)] == []


def test_shapes_without_values_are_no_copies(monkeypatch):
    """They get their values from the checkpoint, if there is one."""
    assert as_of_process(monkeypatch, {"model": plait.eval_shape(lambda: Noisy(0))}) == {}


def test_its_advice_runs(monkeypatch):
    """One seed in all processes, and noise of its own in each."""
    noise = []
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        noise.append(Noisy(0)(jnp.zeros(3)))
    assert not jnp.allclose(*noise)
