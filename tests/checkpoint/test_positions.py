"""Where the data was: iterators in a checkpoint."""

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint import positions, restore, save
from plait.errors import ArgumentTypeError, CheckpointError
from plait.training import Batches
from tests.sampling import slow_but


class Bytes:
    """An iterator whose state is bytes, as that of Grain's loader is."""

    def __init__(self):
        self.place = 0

    def __next__(self):
        self.place += 1
        return self.place

    def get_state(self):
        return self.place.to_bytes(2, "big")

    def set_state(self, state):
        self.place = int.from_bytes(state, "big")


def grain_dataset():
    grain = pytest.importorskip("grain")
    return iter(grain.MapDataset.source(list(range(40))).shuffle(seed=1).repeat().batch(3).to_iter_dataset())


def grain_loader():
    grain = pytest.importorskip("grain")
    sampler = grain.samplers.IndexSampler(40, num_epochs=None, shuffle=True, seed=3)
    return iter(grain.DataLoader(data_source=list(range(40)), sampler=sampler, worker_count=0))


ITERATORS = {
    "Batches of a list": lambda: Batches([[1, 2], [3, 4], [5, 6]]),
    "Batches of a function": lambda: Batches(lambda epoch: np.random.default_rng(epoch).permutation(5)),
    "a dataset of Grain": grain_dataset,
    "a loader of Grain": grain_loader,
    "bytes": Bytes,
}


@pytest.mark.parametrize(
    "make", slow_but(lambda make: make not in (grain_dataset, grain_loader), ITERATORS.values()), ids=ITERATORS
)
@pytest.mark.parametrize("taken", slow_but([1], [0, 1, 7]))
def test_the_next_batch_after_a_restore_is_the_next_one(tmp_path, make, taken):
    model, iterator = plait.Linear(2, 2, rngs=plait.Rngs(0)), make()
    for _ in range(taken):
        next(iterator)
    path = save(tmp_path / "one", {"model": model, "data": iterator})
    expected = [np.asarray(next(iterator)) for _ in range(9)]
    again = make()
    next(again)
    restore(path, {"model": model, "data": again})
    np.testing.assert_array_equal([np.asarray(next(again)) for _ in range(9)], expected)


def test_iterators_alone_can_be_saved(tmp_path):
    iterator = Batches([1, 2, 3])
    next(iterator)
    path = save(tmp_path / "one", {"data": iterator})
    again = Batches([1, 2, 3])
    restore(path, {"data": again})
    assert next(again) == 2


def test_iterators_are_found_under_any_key():
    w, iterator = plait.Param(jnp.ones(2)), Batches([1])
    assert positions.separated({0: w, 1: iterator}) == ({0: w}, {"1": iterator})


@pytest.mark.parametrize("method", ["get_state", "set_state"])
def test_what_has_only_one_of_both_methods_is_no_iterator(tmp_path, method):
    value = type("Half", (), {method: lambda self, *state: {}})()
    with pytest.raises(ArgumentTypeError, match=r"plain value\n +at +data\n"):
        save(tmp_path / "one", {"w": plait.Param(jnp.ones(2)), "data": value})


def test_nothing_moves_when_the_values_do_not_fit(tmp_path):
    iterator = Batches([1, 2, 3])
    path = save(tmp_path / "one", {"w": plait.Param(jnp.ones(2)), "data": iterator})
    next(iterator)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(path, {"w": plait.Param(jnp.ones(3)), "data": iterator})
    assert iterator.get_state() == {"epoch": 0, "index": 1}


def test_iterators_under_other_names_are_told(tmp_path):
    w = plait.Param(jnp.ones(2))
    path = save(tmp_path / "one", {"w": w, "train": Batches([1])})
    for given in ({"w": w}, {"w": w, "data": Batches([1])}):
        with pytest.raises(CheckpointError, match="other iterators") as caught:
            restore(path, given)
        assert "train" in caught.value.parts["found"]
        assert caught.value.parts["at"] == f"{'data, ' * ('data' in given)}train (in {path})"
    restore(path, {"w": w}, partial=True)
    with pytest.raises(CheckpointError, match="other iterators"):
        restore(path, {"w": w, "data": Batches([1])}, partial=True)


def test_numbers_of_numpy_come_back_as_numbers(tmp_path):
    iterator = Bytes()
    iterator.get_state = lambda: {"index": np.int64(17)}
    positions.write_positions(tmp_path, positions.encoded({"data": iterator}))
    assert positions.read_positions(tmp_path, {"data": iterator}, partial=False) == {"data": {"index": 17}}


@pytest.mark.parametrize(
    "state",
    [{1: 2}, {"x": float("nan")}, object(), {"x": np.ones(2)}, (1, 2)],
    ids=["key", "nan", "object", "array", "tuple"],
)
def test_a_position_that_would_not_come_back_is_refused(tmp_path, state):
    iterator = Bytes()
    iterator.get_state = lambda: state
    with pytest.raises(ArgumentTypeError, match="position") as caught:
        save(tmp_path / "one", {"w": plait.Param(jnp.ones(2)), "data": iterator})
    assert caught.value.parts["at"] == "data"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("state", [b"\x00\xff", bytearray(b"\x00\xff"), b""], ids=repr)
def test_a_position_of_bytes_comes_back_as_bytes(tmp_path, state):
    iterator = Bytes()
    iterator.get_state = lambda: state
    positions.write_positions(tmp_path, positions.encoded({"data": iterator}))
    assert positions.read_positions(tmp_path, {"data": iterator}, partial=False) == {"data": bytes(state)}


def test_positions_of_other_processes_are_taken_where_all_were_at_the_same_place(tmp_path, monkeypatch):
    iterator = Batches([1, 2, 3, 4])
    next(iterator)
    path = tmp_path
    monkeypatch.setattr(positions.jax, "process_count", lambda: 2)
    for index in (0, 1):
        monkeypatch.setattr(positions.jax, "process_index", lambda index=index: index)
        positions.write_positions(path, positions.encoded({"data": iterator}))
    monkeypatch.undo()
    assert positions.read_positions(path, {"data": iterator}, partial=False) == {"data": {"epoch": 0, "index": 1}}
    monkeypatch.setattr(positions.jax, "process_count", lambda: 2)
    monkeypatch.setattr(positions.jax, "process_index", lambda: 1)
    next(iterator)
    positions.write_positions(path, positions.encoded({"data": iterator}))
    assert positions.read_positions(path, {"data": iterator}, partial=False)["data"]["index"] == 2
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="saved positions differ between processes") as caught:
        positions.read_positions(path, {"data": iterator}, partial=False)
    assert "2 processes" in caught.value.parts["found"]
    assert caught.value.parts["at"] == f"data (in {path})"


def test_a_module_with_methods_of_these_names_is_a_module(tmp_path):
    class Model(plait.Module):
        def __init__(self):
            self.w = plait.Param(jnp.ones(2))

        def get_state(self):
            return {}

        def set_state(self, state):
            raise AssertionError

    model, fresh = Model(), Model()
    fresh.w.value = jnp.zeros(2)
    restore(save(tmp_path / "one", {"model": model}), {"model": fresh})
    assert fresh.w.value.tolist() == [1, 1]


class Live:
    """An iterator whose position is what it counts with."""

    def __init__(self):
        self.position = {
            "step": np.zeros((), np.int64),
            "epoch": 0,
            "files": [{"at": 3}, bytearray(b"ab")],
            "key": b"x",
            "name": "n",
            "none": None,
        }

    def get_state(self):
        return self.position

    def set_state(self, position):
        self.position = position


def test_a_position_is_a_copy_to_its_last_part():
    data = Live()
    before = positions.positions_of(data)()
    assert before == {"step": 0, "epoch": 0, "files": [{"at": 3}, b"ab"], "key": b"x", "name": "n", "none": None}
    data.position["step"] += 1
    data.position["epoch"] += 1
    data.position["files"][0]["at"] += 1
    data.position["files"][1].extend(b"c")
    data.position["files"].append(4)
    assert (before["step"], before["epoch"]) == (0, 0)
    assert before["files"] == [{"at": 3}, b"ab"]
    assert type(before["files"][1]) is bytes
    batches = Batches([1, 2])
    next(batches)
    assert positions.positions_of(batches)() == {"epoch": 0, "index": 1}
