"""Batches put on the devices ahead of the step."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plait.errors import ArgumentError
from plait.training import Batches, prefetch

DATA = [{"x": np.full((8, 2), i, np.float32)} for i in range(5)]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_the_batches_and_their_order_stay(size):
    found = list(prefetch(iter(DATA), size))
    assert [float(batch["x"][0, 0]) for batch in found] == [0, 1, 2, 3, 4]
    assert all(isinstance(batch["x"], jax.Array) for batch in found)


def test_the_next_batches_are_asked_for_before_the_step():
    asked = []
    ahead = prefetch((asked.append(i) or batch for i, batch in enumerate(DATA)), 2)
    next(ahead)
    assert asked == [0, 1, 2]


def test_each_array_has_the_sharding_of_the_batch():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    batch = next(prefetch(DATA[1:], sharding=sharding))
    assert batch["x"].sharding == sharding
    np.testing.assert_array_equal(batch["x"], DATA[1]["x"])


def test_a_run_resumes_after_the_batches_that_it_took():
    ahead = prefetch(Batches(DATA, epochs=2), 3)
    assert ahead.get_state() == {"epoch": 0, "index": 0}
    for _ in itertools.repeat(None, 4):
        next(ahead)
    state, rest = ahead.get_state(), [float(batch["x"][0, 0]) for batch in ahead]
    assert state == {"epoch": 0, "index": 4}
    again = prefetch(Batches(DATA, epochs=2), 2)
    next(again)
    again.set_state(state)
    assert [float(batch["x"][0, 0]) for batch in again] == rest == [4, 0, 1, 2, 3, 4]


def test_an_error_comes_after_the_batches_before_it():
    def failing():
        yield DATA[0]
        yield DATA[1]
        raise OSError("the disk is gone")

    ahead = prefetch(failing(), 4)
    assert [float(next(ahead)["x"][0, 0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_nothing_ahead_is_an_error():
    with pytest.raises(ArgumentError, match="size=0"):
        prefetch(DATA, 0)
