"""SECURITY.md: reading a file of weights or a bundle runs no code from it; each claim of that page names its test."""

import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.checkpoint.layout import check_whole, write_manifest
from plait.errors import CheckpointError, ExportError
from tests.sampling import slow_but

ROOT = Path(__file__).resolve().parents[1]


class Makes:
    """A value whose pickle makes a folder when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Poison:
    """Files that leave a mark if anybody runs what is in them."""

    def __init__(self, folder):
        self.mark = folder / "was_run"

    @property
    def contents(self):
        pickled = pickle.dumps([Makes(self.mark)])
        array = np.array([Makes(self.mark)], dtype=object)
        return {"a pickle": pickled, "a text pickle": pickle.dumps(Makes(self.mark), 0), "npy": _npy(array)}

    def torch(self, path):
        """A file with the layout of ``torch.save``: a zip archive around a pickle."""
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", self.contents["a pickle"])
            archive.writestr("archive/version", "3")

    def check(self):
        assert not self.mark.exists(), "the poison was run"


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.fixture
def poison(tmp_path):
    return Poison(tmp_path)


def model():
    return plait.Linear(2, 3, rngs=plait.Rngs(0))


def poisoned(folder, content):
    """The folder once for each of its files, with that file replaced."""
    for file in sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file()):
        copy = folder.with_name("poisoned")
        shutil.copytree(folder, copy)
        (copy / file).write_bytes(content)
        yield file, copy
        shutil.rmtree(copy)


def test_the_poison_works(poison):
    """Otherwise the tests below could not fail."""
    for content in (poison.contents["a pickle"], poison.contents["a text pickle"]):
        pickle.loads(content)
        poison.mark.rmdir()
    np.load(io.BytesIO(poison.contents["npy"]), allow_pickle=True)
    assert poison.mark.exists()


KINDS = ["a pickle", "a text pickle", "npy"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves the rest of a failed read
@pytest.mark.parametrize("kind", slow_but(["a pickle"], KINDS))
def test_a_checkpoint_runs_nothing(tmp_path, poison, kind):
    """With the sums of a checkpoint that was written like this, so that only the readers stand between."""
    plait.checkpoint.save(tmp_path / "saved", model())
    manifest = check_whole(tmp_path / "saved")
    for file, copy in poisoned(tmp_path / "saved", poison.contents[kind]):
        if file.name != "plait.json":
            write_manifest(copy, manifest)
        with contextlib.suppress(Exception):  # some files are not read at all
            plait.checkpoint.restore(copy, model())
        gc.collect()  # of what Orbax leaves, while the filter above holds
        poison.check()


def test_a_changed_checkpoint_is_refused(tmp_path, poison):
    plait.checkpoint.save(tmp_path / "saved", model())
    for _, copy in poisoned(tmp_path / "saved", poison.contents["a pickle"]):
        with pytest.raises(CheckpointError, match=r"at +\S*poisoned"):
            plait.checkpoint.restore(copy, model())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "linen.msgpack", "any.npz"])
def test_foreign_weights_run_nothing(tmp_path, poison, kind, name):
    (tmp_path / name).write_bytes(poison.contents[kind])
    with pytest.raises(CheckpointError):
        plait.bridge.convert_checkpoint(tmp_path / name, model(), layout="torch")
    with contextlib.suppress(CheckpointError, ValueError):
        plait.checkpoint.load_safetensors(tmp_path / name)
    poison.check()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_pickles_of_torch_are_refused(tmp_path, poison, suffix):
    poison.torch(tmp_path / f"weights{suffix}")
    with pytest.raises(CheckpointError, match=r"can run arbitrary code.*\n +at +\S*weights"):
        plait.bridge.convert_checkpoint(tmp_path / f"weights{suffix}", model(), layout="torch")
    poison.check()


def test_a_pickle_of_torch_under_another_name_runs_nothing(tmp_path, poison):
    for name in ("weights", "weights.msgpack", "weights.safetensors"):
        poison.torch(tmp_path / name)
        with pytest.raises(CheckpointError):
            plait.bridge.convert_checkpoint(tmp_path / name, model(), layout="torch")
    poison.check()


def _give_right_sum(bundle, name):
    """Write the sum of a file of a bundle into its manifest."""
    manifest = bundle / "manifest.json"
    if name != "manifest.json":
        stored = json.loads(manifest.read_text())
        if name in stored["files"]:
            stored["files"][name]["sha256"] = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
            manifest.write_text(json.dumps(stored))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", slow_but(["a pickle"], KINDS))
def test_exploring_a_file_runs_nothing(tmp_path, poison, kind):
    """With the right sums."""
    plait.checkpoint.save(tmp_path / "saved", model())
    manifest = check_whole(tmp_path / "saved")
    plait.export.save(model(), tmp_path / "exported", inputs=(1, 2))
    plait.checkpoint.save_safetensors(tmp_path / "weights" / "model.safetensors", {"w": jnp.ones(2)})
    for folder in (tmp_path / "saved", tmp_path / "exported" / "stablehlo", tmp_path / "weights"):
        for file, copy in poisoned(folder, poison.contents[kind]):
            if folder.name == "saved" and file.name != "plait.json":
                write_manifest(copy, manifest)
            if folder.name == "stablehlo":
                _give_right_sum(copy, file.name)
            with contextlib.suppress(Exception):  # some files are not read at all
                plait.explore(copy, to=tmp_path / "page.html")
            gc.collect()
            poison.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_runs_nothing_when_it_is_loaded(tmp_path, poison, kind):
    """With the right sums in its manifest."""
    plait.export.save(model(), tmp_path / "saved", inputs=(1, 2))
    for file, copy in poisoned(tmp_path / "saved" / "stablehlo", poison.contents[kind]):
        _give_right_sum(copy, file.name)
        with contextlib.suppress(Exception):
            plait.export.load(copy)
        poison.check()


def test_the_loader_in_a_bundle_is_not_run_by_plait(tmp_path, poison):
    plait.export.save(model(), tmp_path / "saved", inputs=(1, 2))
    (loader,) = (tmp_path / "saved").rglob("load.py")
    loader.write_text(f"import os; os.mkdir({str(poison.mark)!r})\n" + loader.read_text())
    assert plait.export.load(tmp_path / "saved")(jnp.ones((1, 2))).shape == (1, 3)
    poison.check()


def _safetensors(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


HUGE = 2**42
SIZE_BOMBS = {
    "model.safetensors": [
        _safetensors({"w": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}),
        _safetensors({"w": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 64]}}),
        HUGE.to_bytes(8, "little") + b"{}",
    ],
    "linen.msgpack": [  # an array, a map, bytes, a text and an extension of two thousand million entries
        b"\x81\xa1w" + code + (2**31 - 1).to_bytes(4, "big") + b"\x01" * 8
        for code in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")
    ],
}


@pytest.mark.parametrize("name", SIZE_BOMBS)
def test_a_file_that_claims_terabytes_is_refused_before_any_memory_is_taken(tmp_path, name):
    for content in SIZE_BOMBS[name]:
        (tmp_path / name).write_bytes(content)
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=rf"at +{tmp_path}/{name}"):
            plait.bridge.convert_checkpoint(tmp_path / name, model(), layout="torch")
        assert tracemalloc.get_traced_memory()[1] < 2**26
        tracemalloc.stop()


@pytest.mark.parametrize("offsets", [[0, 64], [0, 4 * HUGE]], ids=["too few bytes", "more than the file"])
def test_a_bundle_that_claims_terabytes_is_refused_before_any_memory_is_taken(tmp_path, offsets):
    """With the right sums."""
    plait.export.save(model(), tmp_path / "saved", inputs=(1, 2))
    bundle = tmp_path / "saved" / "stablehlo"
    (weights,) = json.loads((bundle / "manifest.json").read_text())["weight_files"]
    content = (bundle / weights).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    header[name] |= {"shape": [HUGE], "data_offsets": offsets}
    text = json.dumps(header).encode()
    (bundle / weights).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    _give_right_sum(bundle, weights)
    tracemalloc.start()
    with pytest.raises(ExportError, match=re.escape(name)):
        plait.export.load(bundle)(jnp.ones((1, 2)))
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_every_claim_of_the_page_names_a_test_that_exists():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 8
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
