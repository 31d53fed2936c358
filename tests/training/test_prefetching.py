"""Batches put on the devices ahead of the step."""

import itertools
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import plait
from plait.errors import ArgumentError
from plait.training import Batches, prefetch

DATA = [{"x": np.full((8, 2), i, np.float32)} for i in range(5)]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_the_batches_and_their_order_stay(size):
    found = list(prefetch(iter(DATA), size))
    assert [float(batch["x"][0, 0]) for batch in found] == [0, 1, 2, 3, 4]
    assert all(isinstance(batch["x"], jax.Array) for batch in found)


def test_the_next_batches_are_asked_for_before_the_step():
    asked = [threading.Event() for _ in DATA]
    ahead = prefetch((asked[i].set() or batch for i, batch in enumerate(DATA)), 2)
    next(ahead)
    assert all(each.wait(60) for each in asked[:3])
    assert not any(each.is_set() for each in asked[3:])


def test_each_array_has_the_sharding_of_the_batch():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    batch = next(prefetch(DATA[1:], sharding=sharding))
    assert batch["x"].sharding == sharding
    np.testing.assert_array_equal(batch["x"], DATA[1]["x"])


@pytest.mark.parametrize("axes", [{"data": 4}, {"fsdp": 2, "model": 2}, {"data": 2, "fsdp": 2}, {"model": 4}])
def test_a_mesh_divides_the_rows_along_its_axes_for_batches(axes):
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), devices=jax.devices()[:4])
    batch = next(prefetch([{"x": DATA[1]["x"], "epoch": 3}], sharding=mesh))
    rows = dict(plait.partitioning.rules_for(mesh))["batch"]
    assert batch["x"].sharding == NamedSharding(mesh, PartitionSpec(rows))
    assert batch["epoch"].sharding.is_fully_replicated
    np.testing.assert_array_equal(batch["x"], DATA[1]["x"])
    assert int(batch["epoch"]) == 3


def test_rows_that_the_devices_cannot_divide_are_an_error():
    mesh = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    ahead = prefetch([DATA[0], {"x": np.ones((6, 2))}], sharding=mesh)
    next(ahead)
    with pytest.raises(ArgumentError, match=r"batch\['x'\]\n.*length 6"):
        next(ahead)


ROWS = """
import sys
import jax, numpy as np, plait
from plait.training import Batches, prefetch
plait.partitioning.connect_processes()
mesh = jax.make_mesh((4,), ("data",))
wholes = [np.arange(16.0, dtype=np.float32).reshape(8, 2) + 100 * i for i in range(3)]
mine = slice(4 * jax.process_index(), 4 * jax.process_index() + 4)
for given, whole in ((wholes, True), ([each[mine] for each in wholes], False)):
    ahead = prefetch(Batches(given, epochs=1), sharding=mesh, whole=whole)
    for each, batch in zip(wholes, ahead, strict=True):
        assert batch.shape == (8, 2), batch.shape
        assert {shard.index[0].start // 4 for shard in batch.addressable_shards} == {jax.process_index()}
        for shard in batch.addressable_shards:
            assert (np.asarray(shard.data) == each[shard.index]).all()
print("rows are right")
"""


@pytest.mark.slow
def test_each_process_has_its_rows_of_its_own_data_and_of_whole_batches():
    command = [sys.executable, "-m", "plait.cli", "launch", "--processes=2", "--devices=2", "--"]
    done = subprocess.run([*command, sys.executable, "-c", ROWS], capture_output=True, text=True)
    assert done.stdout.count("rows are right") == 2, done.stderr[-3000:]


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


def test_no_batch_is_lost_after_an_error_that_passes():
    class Flaky:
        """A source that fails once, and goes on where it was."""

        def __init__(self):
            self.place, self.failed = 0, False

        def __iter__(self):
            return self

        def __next__(self):
            if self.place == 2 and not self.failed:
                self.failed = True
                raise OSError("try again")
            if self.place == 5:
                raise StopIteration
            self.place += 1
            return DATA[self.place - 1]

    ahead, found = prefetch(Flaky(), 3), []
    while len(found) < 6:
        try:
            found.append(float(next(ahead)["x"][0, 0]))
        except OSError:
            found.append("again")
    assert found == [0, 1, "again", 2, 3, 4]


def test_nothing_ahead_is_an_error():
    with pytest.raises(ArgumentError, match="size=0"):
        prefetch(DATA, 0)
