"""Checkpoints without the classes that they were made of."""

import dataclasses
import enum
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.checkpoint import layout, load_state, read_manifest, reading, save
from plait.checkpoint.plain import stored_arrays
from plait.errors import CheckpointError, NothingSelectedWarning
from plait.util.paths import describe_path
from tests.compare import assert_same, readable


class Model(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0, dropout=1)
        self.layers = plait.List([plait.Linear(2, 3, rngs=rngs), plait.BatchNorm(3, rngs=rngs)])
        self.half = plait.Param(jnp.ones((2, 0), jnp.bfloat16))
        self.small = plait.Param(jnp.ones(3, jnp.float8_e4m3fn))
        self.scales = plait.Dict({"a b": plait.Variable({"x": [1.5, jnp.arange(2)]})})
        self.rngs = rngs


def test_every_value_is_there_under_its_path(tmp_path):
    model = Model()
    objects = {"model": model, "optimizer": plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)}
    path = save(tmp_path / "one", objects, step=3, metrics={"loss": 0.5})
    found = dict(plait.to_flat_state(load_state(path)))
    assert read_manifest(path).step == 3
    expected = {}
    for place, leaf in plait.to_flat_state(plait.state(objects)):
        for inner, value in jax.tree_util.tree_flatten_with_path(leaf.get_raw_value())[0]:
            keys = [getattr(key, "key", getattr(key, "idx", None)) for key in inner]
            expected[(*place, *keys)] = value
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        assert_same(readable(found[place]), readable(value), what=str(place))
        assert getattr(found[place], "dtype", None) == getattr(value, "dtype", None)


def test_a_part_of_it_is_read(tmp_path, monkeypatch):
    path = save(tmp_path / "one", {"model": Model()})
    asked = []
    read = reading.read_arrays
    monkeypatch.setattr(
        "plait.checkpoint.reading.read_arrays", lambda at, targets: asked.extend(targets) or read(at, targets)
    )
    state = load_state(path, plait.PathContains("layers"))
    assert list(state["model"]) == ["layers"]
    assert asked
    assert all(name.startswith("model.layers") for name in asked)


def test_a_single_variable_is_a_checkpoint_too(tmp_path):
    path = save(tmp_path / "one", plait.Param(jnp.arange(3.0)))
    np.testing.assert_array_equal(load_state(path), np.arange(3.0))


def test_arrays_are_read_on_demand_each_once(tmp_path, monkeypatch):
    """In the order of the manifest, with one group in memory; in any other order they have the same values."""
    model = plait.Dict(
        numbers=plait.Variable({f"a{i}": jnp.arange(4.0) + i for i in range(5)}),
        half=plait.Param(jnp.ones((2, 3), jnp.bfloat16)),
        empty=plait.Param(jnp.zeros((2, 0))),
        key=plait.Variable(jax.random.key(3)),
        scale=plait.Variable(2.0),
    )
    path = save(tmp_path / "one", model)
    asked = []
    read = reading.read_arrays
    monkeypatch.setattr(reading, "GROUP", 40)  # bytes: two of the numbers
    monkeypatch.setattr(
        "plait.checkpoint.plain.read_arrays", lambda at, targets: asked.append([*targets]) or read(at, targets)
    )
    arrays = stored_arrays(path)
    assert asked == []
    expected = {("numbers", f"a{i}"): np.arange(4, dtype=np.float32) + i for i in range(5)}
    expected |= {("half",): np.ones((2, 3), jnp.bfloat16), ("key",): np.array(jax.random.key_data(model.key[...]))}
    assert {place: (array.shape, array.dtype) for place, array in arrays.items()} == {
        place: (array.shape, array.dtype) for place, array in expected.items()
    }
    for place, array in arrays.items():
        np.testing.assert_array_equal(array.read(), expected[place], strict=True)
    assert len(asked) > 2
    assert sorted(name for group in asked for name in group) == sorted(map(describe_path, expected))
    for place in reversed(arrays):
        np.testing.assert_array_equal(np.asarray(arrays[place]), expected[place], strict=True)


class Kind(enum.IntEnum):
    """Keys that are no literals."""

    ONE = 1
    TWO = 2


def test_keys_that_are_no_literals_are_read_by_their_names(tmp_path):
    objects = {Kind.ONE: plait.Param(jnp.arange(2.0)), Kind.TWO: plait.Linear(1, 2, rngs=plait.Rngs(0))}
    path = save(tmp_path / "one", objects)
    names = [*read_manifest(path).leaves]
    assert any("Kind.TWO" in name and name.endswith(".kernel") for name in names)
    found = load_state(path)
    assert sorted(found) == sorted(names)
    np.testing.assert_array_equal(found[names[0]], np.arange(2.0))
    assert {place: array.shape for place, array in stored_arrays(path).items()} == {
        (name,): np.shape(found[name]) for name in names
    }


def test_a_manifest_that_claims_more_than_there_is_memory_is_refused_before_any_is_taken(tmp_path, monkeypatch):
    path = save(tmp_path / "one", {"w": plait.Param(jnp.ones(4))})
    stored = json.loads((path / "plait.json").read_text())
    stored.pop("sha256")
    stored["leaves"]["w"]["shape"] = [1 << 50]
    stored["sha256"] = layout._digest_of_manifest(stored)
    (path / "plait.json").write_text(json.dumps(stored))

    def nothing(*_):
        raise AssertionError("an array was read")

    monkeypatch.setattr("plait.checkpoint.reading.read_arrays", nothing)
    with pytest.raises(CheckpointError, match=rf"more bytes than may be read\n +at +{path}\n"):
        load_state(path)
    with pytest.raises(CheckpointError, match="does not fit"):
        plait.checkpoint.restore(path, {"w": plait.Param(jnp.ones(4))})
    whole = save(tmp_path / "two", {"w": plait.Param(jnp.ones(4))})
    with pytest.raises(CheckpointError, match=r"found +16 bytes.*\n +expected +at most 15\n"):
        load_state(whole, limit=15)


@pytest.mark.parametrize(
    "leaf", [{"kind": "array", "dtype": "float32", "shape": [2, 2]}, {"kind": "key", "impl": "rbg", "shape": []}]
)
def test_a_manifest_with_another_shape_than_the_array_is_refused(tmp_path, leaf):
    path = save(tmp_path / "one", {"w": plait.Param(jnp.ones(3))})
    manifest = layout.check_whole(path)
    (path / layout.MANIFEST).unlink()
    layout.write_manifest(path, dataclasses.replace(manifest, leaves={"w": leaf}))
    with pytest.raises(CheckpointError, match=rf"cannot be read\n +at +{path}\n.*w is [^\n]*but its manifest says"):
        load_state(path)


def test_a_damaged_one_is_refused(tmp_path):
    path = save(tmp_path / "one", {"w": plait.Param(jnp.ones(4))})
    next(file for file in (path / "arrays").rglob("*") if file.is_file()).write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(path)


@pytest.mark.parametrize("filter", [plait.Param, plait.PathContains("modle"), None])
def test_a_filter_that_selects_nothing_is_told(tmp_path, filter):
    """A checkpoint does not store the classes of variables."""
    path = save(tmp_path / "one", {"model": plait.Linear(2, 3, rngs=plait.Rngs(0))})
    with pytest.warns(NothingSelectedWarning, match=r"load_state: the filter .* selects nothing") as told:
        assert not load_state(path, filter)
    assert [each.filename for each in told] == [__file__]
    assert str(path) in str(told[0].message)
    assert "PathContains" in str(told[0].message)


def test_an_empty_checkpoint_has_nothing_to_select(tmp_path):
    assert not load_state(save(tmp_path / "one", {}), plait.PathContains("model"))
