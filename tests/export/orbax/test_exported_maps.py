"""Folders of ``jax.export`` programs: what is read back, and what is refused."""

import json
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from plait.export.formats.stablehlo_loader import MANIFEST
from plait.export.orbax.exported_maps import load_jax_exported_map, save_jax_exported_map
from tests.failing_renames import let_renames_fail


def programs():
    (b,) = jax.export.symbolic_shape("b")
    double = jax.export.export(jax.jit(lambda x: 2 * x))(jax.ShapeDtypeStruct((b,), jnp.float32))
    affine = jax.export.export(jax.jit(lambda p, x: {"y": x @ p["w"]}), platforms=("cpu", "tpu"))(
        {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}, jax.ShapeDtypeStruct((4, 2), jnp.float32)
    )
    return {"double": double, "affine.v1": affine}


@pytest.fixture
def folder(tmp_path):
    save_jax_exported_map(tmp_path / "programs", programs())
    return tmp_path / "programs"


def test_e39_programs_are_read_back_as_they_were(folder):
    """E39: free sizes, platforms and structures; folders of earlier versions have this format."""
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["format"], manifest["format_version"]) == ("plait-jax-exported-map", 2)
    loaded = load_jax_exported_map(folder)
    assert list(loaded) == ["double", "affine.v1"]
    np.testing.assert_array_equal(loaded["double"].call(jnp.arange(5.0)), 2 * np.arange(5))
    affine = loaded["affine.v1"]
    assert affine.platforms == ("cpu", "tpu")
    np.testing.assert_array_equal(affine.call({"w": jnp.ones((2, 3))}, jnp.ones((4, 2)))["y"], np.full((4, 3), 2.0))


def test_e39_derivatives_are_kept_on_request(tmp_path):
    """E39."""
    save_jax_exported_map(tmp_path / "plain", programs())
    save_jax_exported_map(tmp_path / "smooth", programs(), vjp_order=1)
    gradient = jax.grad(lambda x, f: f.call(x).sum())
    assert gradient(jnp.ones(3), load_jax_exported_map(tmp_path / "smooth")["double"]).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="No VJP"):
        gradient(jnp.ones(3), load_jax_exported_map(tmp_path / "plain")["double"])


def test_e39_nothing_is_replaced_unless_asked(folder):
    """E39, E20."""
    with pytest.raises(OSError, match="path of the export already exists"):
        save_jax_exported_map(folder, {"other": programs()["double"]})
    assert len(load_jax_exported_map(folder)) == 2
    save_jax_exported_map(folder, {"other": programs()["double"]}, overwrite=True)
    assert list(load_jax_exported_map(folder)) == ["other"]


@jax.tree_util.register_pytree_node_class
class Unknown:
    """A structure that jax.export cannot write."""

    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def test_e39_a_failure_leaves_nothing_behind(tmp_path):
    """E39: the first program is fine, the second cannot be written."""
    strange = jax.export.export(jax.jit(lambda x: x.value))(Unknown(jax.ShapeDtypeStruct((), jnp.float32)))
    with pytest.raises(RuntimeError, match=r"cannot be serialised\n +at +strange"):
        save_jax_exported_map(tmp_path / "programs", {**programs(), "strange": strange})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a/b", "../b", "..", ".hidden", "a\\b", "c:d", "a\0", 3])
def test_e39_names_are_those_of_files(tmp_path, name):
    """E39."""
    with pytest.raises(ValueError, match="part of a file's name"):
        save_jax_exported_map(tmp_path / "programs", {name: programs()["double"]})
    with pytest.raises(ValueError, match="no programs"):
        save_jax_exported_map(tmp_path / "programs", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "edited", "empty", "missing"])
def test_e39_a_changed_program_is_named(folder, damage):
    """E39."""
    place = folder / "affine.v1.jax_exported"
    content = bytearray(place.read_bytes())
    if damage == "edited":
        content[len(content) // 2] ^= 1
    place.write_bytes({"truncated": content[:-1], "edited": content, "empty": b"", "missing": b""}[damage])
    if damage == "missing":
        place.unlink()
    with pytest.raises(RuntimeError, match=r"at +\S*affine\.v1\.jax_exported\n +found +"):
        load_jax_exported_map(folder)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"[" * 100_000,
        b"\xff\xfe",
        pickle.dumps(Bomb()),
        b'{"format": "plait-jax-exported-map", "format_version": 1, "programs": {}}',
        b'{"format": "plait-jax-exported-map", "format_version": 2, "programs": {}}',
        b'{"format": "other", "format_version": 2, "programs": {}}',
        b'{"format": "plait-jax-exported-map", "format_version": 2, "programs": {"a": 3}}',
        b'{"format": "plait-jax-exported-map", "format_version": 2, "programs": []}',
    ],
)
def test_e39_a_damaged_manifest_is_named(folder, content):
    """E39."""
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(RuntimeError, match=rf"at +\S*{MANIFEST}\n"):
        load_jax_exported_map(folder)


@pytest.mark.parametrize("file", ["../outside", "/etc/hostname", "..", "", "sub/file", "a\\b", None, 3, ["x"]])
def test_e39_a_manifest_names_files_of_its_own_folder(folder, file):
    """E39: even with the right sum."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["programs"]["double"]["file"] = file
    (folder.parent / "outside").write_bytes((folder / "double.jax_exported").read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match=rf"not a file of this folder\n +at +\S*{MANIFEST}\n"):
        load_jax_exported_map(folder)


def test_e39_bytes_that_jax_cannot_read_are_named(folder):
    """E39: a folder whose sums are right, and whose program is none."""
    import hashlib

    for content in (pickle.dumps(Bomb()), b"\x00" * 64):
        (folder / "double.jax_exported").write_bytes(content)
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["files"]["double.jax_exported"]["sha256"] = hashlib.sha256(content).hexdigest()
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(RuntimeError, match=r"at +\S*double\.jax_exported\n"):
            load_jax_exported_map(folder)


def test_e39_a_folder_without_manifest_is_refused(tmp_path):
    """E39."""
    with pytest.raises(RuntimeError, match=MANIFEST):
        load_jax_exported_map(tmp_path)


def test_e39_a_folder_whose_replacement_was_interrupted_is_found(folder, monkeypatch):
    """E20: what was being replaced is moved back by the next reader."""
    let_renames_fail(monkeypatch, (1, 2), OSError("no rename today"))
    with pytest.raises(OSError, match="no rename today"):
        save_jax_exported_map(folder, {"only": programs()["double"]}, overwrite=True)
    assert not folder.exists()
    assert list(load_jax_exported_map(folder)) == ["double", "affine.v1"]


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_e39_orbax_reads_the_folder(folder):
    """E39: its loader takes the names from the files."""
    utils = pytest.importorskip("orbax.export.utils")
    loaded = utils.load_jax_exported_map(str(folder))
    assert {name: str(each.in_avals) for name, each in loaded.items()} == {
        name: str(each.in_avals) for name, each in programs().items()
    }
