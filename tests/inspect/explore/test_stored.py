"""Files are read without the model's class, lazily, and what is damaged or unknown is refused. (W8 to W10)"""

import pickle
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint import plain, reading
from plait.inspect.explore.outline import LEAF
from plait.inspect.explore.stored import outline_of_file


def model(scale=1.0):
    rngs = plait.Rngs(0)
    made = plait.Sequential(plait.Linear(4, 8, rngs=rngs), plait.Dropout(0.5, rngs=rngs), plait.Linear(8, 2, rngs=rngs))
    made.layers[0].kernel[...] = made.layers[0].kernel.value * scale
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One file of each kind with the same weights."""
    folder = tmp_path_factory.mktemp("files")
    whole = {"model": model(), "rate": plait.Variable(0.5), "empty": plait.Param(jnp.zeros((0, 3)))}
    plait.checkpoint.save(folder / "run" / "epoch-1", {"model": model()}, step=1)
    plait.checkpoint.save(folder / "run" / "epoch-2", whole, step=2, metrics={"loss": 0.25})
    frozen = model()
    frozen.eval()
    plait.export.save(frozen, folder / "export", inputs=("batch", 4))
    weights = {"layers.0.kernel": frozen.layers[0].kernel.value, "half": jnp.ones(3, jnp.bfloat16)}
    plait.checkpoint.save_safetensors(folder / "weights.safetensors", weights)
    return folder


def leaves(outline):
    return {entry.path: entry for entry in outline.entries if entry.role == LEAF}


KERNEL = ("layers", 0, "kernel")


@pytest.mark.parametrize(
    ("path", "origin", "kernel"),
    [
        ("run/epoch-2", "checkpoint", ("model", *KERNEL)),
        ("run", "checkpoint", ("model", *KERNEL)),
        ("export", "StableHLO bundle", KERNEL),
        ("export/stablehlo", "StableHLO bundle", KERNEL),
        ("weights.safetensors", "safetensors", KERNEL),
    ],
)
def test_every_kind_of_file_gives_paths_and_values(files, path, origin, kernel):
    outline = outline_of_file(files / path)
    assert outline.origin == origin
    entry = leaves(outline)[kernel]
    assert (entry.shape, entry.dtype, entry.bytes) == ((4, 8), "float32", 128)
    np.testing.assert_array_equal(entry.read(), model().layers[0].kernel.value)
    assert [each.path for each in outline.entries[:1]] == [()]


def test_a_folder_of_checkpoints_is_its_newest(files):
    outline = outline_of_file(files / "run")
    assert (outline.name, dict(outline.facts)) == ("epoch-2", {"step": "2", "loss": "0.25"})


def test_a_checkpoint_has_keys_empty_arrays_and_plain_numbers(files):
    found = leaves(outline_of_file(files / "run"))
    key = found["model", "layers", 1, "rngs", "key"]
    assert (key.is_key, key.dtype, key.shape) == (True, "key<threefry2x32>", ())
    np.testing.assert_array_equal(key.read(), jax.random.key_data(model().layers[1].rngs.key.value))
    assert (found["empty",].shape, found["empty",].dtype) == ((0, 3), "float32")
    assert found["rate",].attributes == {"value": "0.5"}


def test_the_signatures_of_a_bundle_are_calls_of_its_root(files):
    (call,) = outline_of_file(files / "export").entries[0].calls
    assert (call.method, call.inputs, call.outputs) == (
        "serving_default", ("x: float32[batch, 4]",), ("y: float32[batch, 2]",),
    )  # fmt: skip


def test_a_checkpoint_is_read_in_groups_each_of_them_once(files):
    with (
        mock.patch.object(reading, "GROUP", 100),
        mock.patch.object(plain, "read_arrays", wraps=plain.read_arrays) as read,
    ):
        found = leaves(outline_of_file(files / "run" / "epoch-1"))
        for entry in found.values():
            entry.read()
    asked = [name for call in read.call_args_list for name in call.args[1]]
    assert len(read.call_args_list) > 1
    assert sorted(asked) == sorted(set(asked))
    assert len(asked) == len(found)


def test_names_are_paths_unless_they_lie_below_an_array(tmp_path):
    names = ["a", "a.b", "c.0.d", "c.00.d", "c.1.d"]
    file = plait.checkpoint.save_safetensors(tmp_path / "w.safetensors", {name: jnp.ones(2) for name in names})
    expected = {("a",), ("a.b",), ("c", 0, "d"), ("c", "00", "d"), ("c", 1, "d")}
    assert set(leaves(outline_of_file(file))) == expected


def test_orbax_folders_are_read(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"a": [np.ones(2), np.zeros((2, 3))]})
    found = leaves(outline_of_file(tmp_path / "tree"))
    assert {path: entry.shape for path, entry in found.items()} == {("a", 0): (2,), ("a", 1): (2, 3)}


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("none", None, "nothing"),
        ("model.pt", pickle.dumps({}), "a file of another kind"),
        ("folder", {}, "a folder of other"),
    ],
    ids=["nothing", "pickle", "folder"],
)
def test_what_is_no_known_file_is_refused(tmp_path, name, content, found):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        (tmp_path / name).mkdir()
    with pytest.raises(plait.errors.CheckpointError, match=rf"at +\S*{name}\n +found +{found}"):
        outline_of_file(tmp_path / name)


def test_a_manifest_that_claims_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    path = plait.checkpoint.save(tmp_path / "saved", plait.Param(jnp.ones(100)))
    monkeypatch.setattr(plain, "memory", lambda: 300)
    with pytest.raises(plait.errors.CheckpointError, match="400 bytes"):
        outline_of_file(path)


def test_a_name_of_many_parts_is_one_row(tmp_path):
    """W8: each part would be a row below the one before, of as long a path."""
    name = "a" + ".a" * 200_000
    path = plait.checkpoint.save_safetensors(tmp_path / "w.safetensors", {name: np.ones(2, np.float32)})
    assert [entry.path for entry in outline_of_file(path).entries] == [(), (name,)]
