"""Safetensors files: round trips of every dtype, shards with an index, and refusal of damaged ones."""

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from plait import checkpoint
from plait.checkpoint.safetensors import _DTYPES, INDEX
from plait.errors import ArgumentError, ArgumentTypeError, CheckpointError
from tests.compare import assert_same
from tests.failing_renames import each_failing_rename, let_renames_fail

ARRAYS = {"a.weight": jnp.ones((4, 3)), "a.bias": jnp.zeros(3), "b.weight": jnp.full((2, 8), 2, jnp.bfloat16)}


def read(arrays):
    return {name: array.read() for name, array in arrays.items()}


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable() and name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(_DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=5,
    ),
    st.integers(1, 100),
)
def test_what_is_saved_is_loaded(tmp_path_factory, shapes, shard_bytes):
    expected = {
        name: np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(_DTYPES[dtype])
        for name, (dtype, shape) in shapes.items()
    }
    folder = tmp_path_factory.mktemp("weights")
    for path in (folder / "one.safetensors", folder / "several"):
        checkpoint.save_safetensors(path, expected, shard_bytes=shard_bytes)
        found = checkpoint.load_safetensors(path)
        assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
            name: (array.shape, array.dtype) for name, array in expected.items()
        }
        assert_same(read(found), expected)


def test_shards_are_as_large_as_allowed_and_the_index_says_where(tmp_path):
    path = checkpoint.save_safetensors(tmp_path / "w", ARRAYS, shard_bytes=60)
    index = json.loads((path / INDEX).read_text())
    assert index == {
        "metadata": {"total_size": 92},
        "weight_map": {
            "a.bias": "model-00001-of-00002.safetensors",
            "a.weight": "model-00001-of-00002.safetensors",
            "b.weight": "model-00002-of-00002.safetensors",
        },
    }
    assert_same(read(checkpoint.load_safetensors(path / INDEX)), ARRAYS)


def test_a_shard_has_five_gigabytes_unless_said_otherwise():
    """As in the files that are published."""
    assert inspect.signature(checkpoint.save_safetensors).parameters["shard_bytes"].default == 5_000_000_000


def test_other_tools_read_it(tmp_path):
    from safetensors.numpy import load_file

    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", {"x": np.arange(6).reshape(2, 3).T})
    np.testing.assert_array_equal(load_file(str(path))["x"], np.arange(6).reshape(2, 3).T)


def test_metadata_are_in_each_file(tmp_path):
    import safetensors

    path = checkpoint.save_safetensors(tmp_path / "w", ARRAYS, shard_bytes=60, metadata={"format": "pt"})
    for file in path.glob("*.safetensors"):
        with safetensors.safe_open(str(file), framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert_same(read(checkpoint.load_safetensors(path)), ARRAYS)


@pytest.mark.parametrize("keep", [0, 4, 30, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", ARRAYS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"at +.*w\.safetensors"):
        checkpoint.load_safetensors(path)


def _rewrite(path):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-60] + bytes(60))  # of the same size


def place(arrays):
    return {name: array.place() for name, array in arrays.items()}


@pytest.mark.parametrize("read", [read, place])
@pytest.mark.parametrize("change", [_rewrite, lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path, change, read):
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", ARRAYS)
    arrays = checkpoint.load_safetensors(path)
    change(path)
    with pytest.raises(CheckpointError, match=r"at +.*w\.safetensors\n.*has changed since it was opened"):
        read(arrays)


@pytest.mark.parametrize(
    ("offsets", "size", "words"),
    [
        ([[0, 8], [8, 12]], 12, None),
        ([[4, 12], [0, 4]], 12, None),
        ([[0, 8], [12, 16]], 16, "b with too many or few bytes"),
        ([[0, 8], [4, 8]], 8, "b with too many or few bytes"),
        ([[0, 4], [4, 8]], 8, "a with too many or few bytes"),
        ([[0, 8], [8, 12]], 16, "bytes instead of"),
        ([[0, 8], [8, 12]], 10, "bytes instead of"),
        ([[0, -8], [8, 12]], 12, r"-8 as \['a'\]\['data_offsets'\]\[1\] instead of a whole number from 0"),
    ],
)
def test_arrays_lie_side_by_side_in_the_file(tmp_path, offsets, size, words):
    shapes = {"a": [2], "b": [1]}
    header = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": place}
        for (name, shape), place in zip(shapes.items(), offsets, strict=True)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + np.arange(4, dtype=np.float32).tobytes()[:size])
    if words is None:
        found = read(checkpoint.load_safetensors(path))
        assert [*found] == ["a", "b"]
        assert found["b"].item() == offsets[1][0] / 4
        return
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load_safetensors(path)


def _lose_a_shard(path, index):
    (path / "model-00002-of-00002.safetensors").unlink()


def _misplace(path, index):
    index["weight_map"]["a.bias"] = "model-00002-of-00002.safetensors"


def _promise_too_much(path, index):
    index["weight_map"]["c"] = "model-00002-of-00002.safetensors"


def _point_outside(path, index):
    index["weight_map"]["c"] = "../model.safetensors"


def _be_a_list(path, index):
    index.clear()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose_a_shard, "found +nothing"),
        (_misplace, r"a\.bias in model-00001"),
        (_promise_too_much, "no c in model-00002"),
        (_point_outside, "instead of the name of a file in the folder itself"),
        (_be_a_list, "an index that cannot be read"),
    ],
)
def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path, damage, words):
    path = checkpoint.save_safetensors(tmp_path / "w", ARRAYS, shard_bytes=60)
    index = json.loads((path / INDEX).read_text())
    damage(path, index)
    (path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load_safetensors(path)


def test_a_folder_without_weights_says_what_is_in_it(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=rf"at +{tmp_path}\n +found +config\.json\n"):
        checkpoint.load_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["w", "w.safetensors"])
def test_what_is_there_is_replaced_only_when_asked(tmp_path, name):
    path = checkpoint.save_safetensors(tmp_path / name, {"x": np.ones(2)})
    what = "file" if name.endswith(".safetensors") else "folder"
    with pytest.raises(CheckpointError, match=rf"already exists\n +at +{path}\n +found +a {what}\n"):
        checkpoint.save_safetensors(path, ARRAYS)
    assert_same(read(checkpoint.load_safetensors(path)), {"x": np.ones(2)})
    checkpoint.save_safetensors(path, ARRAYS, shard_bytes=60, overwrite=True)
    assert_same(read(checkpoint.load_safetensors(path)), ARRAYS)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_lazy_arrays_are_read_when_they_are_written(tmp_path):
    """One after the other; where nothing is written, none is read."""
    seen, dtype = [], np.dtype(np.float32)
    lazy = {
        name: checkpoint.StoredArray((2,), dtype, lambda name=name: [seen.append(name), np.ones(2, dtype)][1])
        for name in ("a", "b")
    }
    (tmp_path / "taken.safetensors").write_text("")
    with pytest.raises(CheckpointError, match="already exists"):
        checkpoint.save_safetensors(tmp_path / "taken.safetensors", lazy)
    assert seen == []
    found = checkpoint.load_safetensors(checkpoint.save_safetensors(tmp_path / "w", lazy, shard_bytes=8))
    assert_same(read(found), {"a": np.ones(2, dtype), "b": np.ones(2, dtype)})
    assert seen == ["a", "b"]


@each_failing_rename
def test_a_rename_that_fails_loses_nothing(tmp_path, monkeypatch, failures, error):
    """What was there is in its place, or, if it cannot be put back, is found by the next reader."""
    path = checkpoint.save_safetensors(tmp_path / "w", {"x": np.ones(2)})
    tried = let_renames_fail(monkeypatch, failures, error)
    expected = CheckpointError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match="no rename today"):
        checkpoint.save_safetensors(path, ARRAYS, overwrite=True)
    assert len(tried) > max(failures)
    if failures == (1, 2):
        assert not path.exists()
    else:
        assert [file.name for file in tmp_path.iterdir()] == ["w"]
    assert_same(read(checkpoint.load_safetensors(path)), {"x": np.ones(2)})


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_whose_rename_fails_stays_as_it_was(tmp_path, monkeypatch, error):
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", {"x": np.ones(2)})
    let_renames_fail(monkeypatch, (0,), error("no rename today"))
    with pytest.raises((CheckpointError, KeyboardInterrupt), match="no rename today"):
        checkpoint.save_safetensors(path, ARRAYS, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]
    assert_same(read(checkpoint.load_safetensors(path)), {"x": np.ones(2)})


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match=rf"at +{tmp_path}/work\n +found +a folder with other files"):
        checkpoint.save_safetensors(tmp_path / "work", ARRAYS, overwrite=True)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "found"),
    [("file/w.safetensors", "a directory|exists"), ("file/folder", "a directory|exists")],
    ids=["one file", "a folder"],
)
def test_a_path_that_cannot_be_written_is_named(tmp_path, name, found):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=rf"cannot be written.*\n +at +{tmp_path}/file\n +found +.*({found})"):
        checkpoint.save_safetensors(tmp_path / name, ARRAYS)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arrays", [{"x": np.array(["text"])}, {3: np.ones(2)}])
def test_only_numbers_under_names_are_saved(tmp_path, arrays):
    with pytest.raises(ArgumentTypeError, match="safetensors files store arrays of numbers by name"):
        checkpoint.save_safetensors(tmp_path / "w.safetensors", arrays)
    assert not list(tmp_path.iterdir())


def test_an_array_that_exceeds_the_memory_is_refused_before_any_is_taken(tmp_path):
    """Of a file that has as many bytes as it claims, since a disk stores no zeros."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    with open(tmp_path / "x.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2**40)
    array = checkpoint.load_safetensors(tmp_path / "x.safetensors")["w"]
    with pytest.raises(CheckpointError, match=r"at +\S*x\.safetensors\n +found +an array of 1,099,511,627,776 bytes"):
        array.read()


def _mesh():
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


SPECS = [(), ("x",), (None, "y"), ("y", "x"), (("x", "y"),), (None, ("y", "x"))]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", _DTYPES)
def test_arrays_are_read_into_their_shardings(tmp_path, dtype, spec):
    """Each device has its part, whatever the dtype, as ``jax.device_put`` of the whole would give it."""
    values = (np.arange(128).reshape(8, 16) % 7).astype(_DTYPES[dtype])
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", {"odd": np.zeros(3, np.int8), "w": values})
    sharding = NamedSharding(_mesh(), PartitionSpec(*spec))
    found = checkpoint.load_safetensors(path)["w"].place(sharding)
    expected = jax.device_put(values, sharding)
    assert (found.dtype, found.sharding, found.committed) == (expected.dtype, sharding, True)
    for ours, theirs in zip(found.addressable_shards, expected.addressable_shards, strict=True):
        assert (ours.device, ours.index) == (theirs.device, theirs.index)
        np.testing.assert_array_equal(ours.data, theirs.data)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 3)], ids=str)
def test_scalars_and_empty_arrays_are_placed(tmp_path, shape):
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", {"w": np.full(shape, 2, np.float32)})
    array = checkpoint.load_safetensors(path)["w"]
    for sharding in (None, SingleDeviceSharding(jax.devices()[3]), NamedSharding(_mesh(), PartitionSpec())):
        found = array.place(sharding, dtype=jnp.bfloat16)
        assert (found.shape, found.dtype, found.committed) == (shape, jnp.bfloat16, sharding is not None)
        assert sharding is None or found.sharding == sharding
        np.testing.assert_array_equal(found, np.full(shape, 2))


def test_only_the_parts_that_are_needed_are_read_and_each_once():
    """A part that several devices have is read once, and they share its memory."""
    read = []

    class Mapped(np.ndarray):
        def __getitem__(self, index):
            part = super().__getitem__(index)
            read.append(part.shape)
            return part

    mapped = np.zeros((8, 16), np.float32).view(Mapped)
    array = checkpoint.StoredArray((8, 16), mapped.dtype, read=lambda: pytest.fail("read"), mapped=lambda: mapped)
    found = array.place(NamedSharding(_mesh(), PartitionSpec("y")))
    assert read == [(4, 16)] * 2
    assert len({shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards}) == 2
    read.clear()
    array.place(SingleDeviceSharding(jax.devices()[1]))
    assert read == [(8, 16)]


def test_what_shares_memory_is_donated_only_once():
    """Devices that share memory keep their values when one of them writes."""
    values = np.ones((64, 64), np.float32)
    array = checkpoint.StoredArray(values.shape, values.dtype, lambda: values)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    found = add(add(array.place(NamedSharding(_mesh(), PartitionSpec()))))
    assert [float(shard.data.min()) for shard in found.addressable_shards] == [3.0] * 8
    assert values.min() == values.max() == 1


def test_a_placed_array_does_not_change_with_its_file(tmp_path):
    path = checkpoint.save_safetensors(tmp_path / "w.safetensors", {"w": np.ones((64, 64), np.float32)})
    array = checkpoint.load_safetensors(path)["w"]
    placed = [array.place(), array.place(NamedSharding(_mesh(), PartitionSpec("x"))), array.read()]
    with path.open("r+b") as file:
        file.seek(-64 * 64 * 4, 2)
        file.write(bytes(64 * 64 * 4))
    assert [float(each.min()) for each in placed] == [1.0] * 3


def test_a_sharding_that_does_not_fit_is_refused():
    array = checkpoint.StoredArray((6, 3), np.dtype(np.float32), lambda: pytest.fail("read"))
    with pytest.raises(ArgumentError, match=r"at +the stored array\n +found +dimension 0 of length 6"):
        array.place(NamedSharding(_mesh(), PartitionSpec("x")))
