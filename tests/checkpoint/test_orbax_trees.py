"""Trees in folders that Orbax wrote."""

import gc
import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from plait.checkpoint.layout import is_orbax
from plait.checkpoint.orbax_trees import load_orbax_tree
from plait.errors import CheckpointError

TREE = {
    "params": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)},
    "list": [jnp.zeros((), jnp.int32), jnp.ones(2)],
}


def write(path, tree=TREE):
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(tmp_path_factory.mktemp("orbax") / "tree")


def check_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(ours) is np.ndarray
        np.testing.assert_array_equal(ours, np.asarray(theirs), strict=True)


def test_a_tree_is_read_onto_the_host(written):
    assert is_orbax(written)
    check_same(load_orbax_tree(written), TREE)


def test_a_relative_path_will_do(written, monkeypatch):
    monkeypatch.chdir(written.parent)
    check_same(load_orbax_tree(type(written)("tree")), TREE)


@pytest.mark.parametrize("chunk", [3, 2**42], ids=["small chunks", "one chunk"])
def test_a_tree_that_claims_terabytes_is_refused_before_any_memory_is_taken(tmp_path, chunk):
    """TensorStore ends the process when it cannot have what an array claims."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(tmp_path / "tree", args=ocp.args.PyTreeSave({"kernel": jnp.ones((2, 3))}))
    (file,) = tmp_path.rglob(".zarray")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"shape": [2, 2**42], "chunks": [2, chunk]}))
    with pytest.raises(CheckpointError, match=rf"more bytes than may be read\n +at +{tmp_path}/tree\n") as caught:
        load_orbax_tree(tmp_path / "tree")
    assert f"{2**45:,} bytes" in caught.value.parts["found"]


def test_what_lay_on_several_devices_is_read_whole(tmp_path):
    """Also on a machine that has none of them: nothing is asked of the devices that it was written from."""
    mesh = jax.make_mesh((8,), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    tree = {"w": jax.device_put(jnp.arange(16.0), spec)}
    check_same(load_orbax_tree(write(tmp_path / "sharded", tree)), tree)


def test_a_step_with_one_item_is_read_like_the_item(tmp_path):
    write(tmp_path / "3" / "default")
    assert is_orbax(tmp_path / "3")
    check_same(load_orbax_tree(tmp_path / "3"), TREE)


def test_several_items_are_an_error_that_names_them(tmp_path):
    for name in ("params", "ema"):
        write(tmp_path / "3" / name)
    with pytest.raises(CheckpointError, match=r"several.*\n  at +.*/3\n  found +ema, params\n"):
        load_orbax_tree(tmp_path / "3")


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "another folder"])
def test_other_folders_are_not_orbax_s(tmp_path, what):
    if what != "nothing":
        (tmp_path / "other").mkdir()
    if what == "another folder":
        (tmp_path / "other" / "file").write_text("x")
    assert not is_orbax(tmp_path / "other")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Orbax had not awaited
@pytest.mark.parametrize("damage", ["_METADATA", "manifest.ocdbt", "d"])
def test_a_damaged_tree_names_the_folder(tmp_path, damage):
    path = write(tmp_path / "tree")
    lost = path / damage
    if damage == "_METADATA":
        lost.write_text("{")
    elif lost.is_dir():
        for file in lost.iterdir():
            file.write_bytes(b"")
    else:
        lost.unlink()
    with pytest.raises(CheckpointError, match=rf"incomplete or damaged\n  at +{path}\n"):
        load_orbax_tree(path)
    gc.collect()  # here, and not in a test that comes later
