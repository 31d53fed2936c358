"""Bundles that were cut, swapped or edited: refused by name, never run, never a crash. (rules E35, E36)"""

import hashlib
import json
import random
import shutil

import jax
import numpy as np
import pytest

from plait.errors import ExportError
from plait.export import describe_exports, load, save
from plait.export.formats import stablehlo_loader
from plait.export.formats.manifest import read_manifest
from tests.export.models import batch, trained
from tests.sampling import slow_but

FEW, MANY = 1_000, 10_000  # damaged files
some_runs = pytest.mark.parametrize("runs", slow_but([FEW], [FEW, MANY]))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "net"
    save(trained(), path, inputs=("batch", 4))
    return path / "stablehlo"


@pytest.fixture
def copy(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "copy")


def edit(copy, change):
    place = copy / "manifest.json"
    manifest = json.loads(place.read_text())
    change(manifest)
    place.write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights.safetensors", "serving_default.jax_export", "manifest.json"])
@pytest.mark.parametrize("how", ["cut", "empty", "missing", "other"])
def test_a_damaged_file_is_refused_by_name(copy, name, how):
    place = copy / name
    content = place.read_bytes()
    if how == "missing":
        place.unlink()
    else:
        place.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": content[::-1]}[how])
    is_none = (how, name) == ("missing", "manifest.json")
    with pytest.raises(ExportError, match="no export at this path" if is_none else name.replace(".", r"\.")):
        load(copy)


@pytest.mark.slow
def test_what_was_compared_with_the_checksum_is_what_is_used(bundle, copy, monkeypatch):
    read = np.fromfile

    def read_and_overwrite(place, *args):
        content = read(place, *args)
        place.write_bytes(bytes(len(content)))
        return content

    expected = load(bundle)(batch(3))
    monkeypatch.setattr(stablehlo_loader.np, "fromfile", read_and_overwrite)
    jax.tree.map(np.testing.assert_array_equal, load(copy)(batch(3)), expected)
    monkeypatch.undo()
    with pytest.raises(ExportError, match="was changed"):
        load(copy)


@pytest.mark.parametrize("target", ["/etc/passwd", "../net/weights.safetensors", "a/b", "..", ".", ""])
def test_paths_do_not_leave_the_folder(copy, target):
    def point_elsewhere(manifest):
        manifest["files"][target] = manifest["files"]["weights.safetensors"]
        manifest["weight_files"] = [target]

    edit(copy, point_elsewhere)
    with pytest.raises(ExportError, match="is not a file of this folder"):
        load(copy)


def test_swapped_weights_are_refused(copy, tmp_path):
    save(trained(1), tmp_path / "other", inputs=("batch", 4))
    shutil.copy(tmp_path / "other" / "stablehlo" / "weights.safetensors", copy)
    with pytest.raises(ExportError, match=r"weights\.safetensors was changed"):
        load(copy)


def test_a_bundle_that_names_weights_that_are_not_there(copy):
    edit(copy, lambda manifest: manifest["signatures"]["serving_default"]["weights"].append("more"))
    with pytest.raises(ExportError, match=r"no weights.*more"):
        load(copy)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """A few random edits: bytes flipped, cut out, doubled, or numbers made huge."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) or 1)
        kind = draw.randrange(5)
        if kind == 0 and data:
            data[place] = draw.randrange(256)
        elif kind == 1:
            del data[place : place + draw.randint(1, 30)]
        elif kind == 2:
            data[place:place] = data[place : place + draw.randint(1, 30)]
        elif kind == 3:
            data[place:place] = draw.choice([b"9" * 18, b"-1", b"null", b"{", b"[" * 300, b'"..', b"\\u0000", b"1e999"])
        else:
            data = data[: draw.randrange(len(data) + 1)]
    return bytes(data)


@pytest.mark.slow
@some_runs
def test_mutated_manifests_are_read_or_refused(bundle, tmp_path, runs):
    """Whatever is read stays a manifest whose files lie in the folder."""
    content, place = (bundle / "manifest.json").read_bytes(), tmp_path / "manifest.json"
    read, messages = 0, []
    for seed in range(runs):
        place.write_bytes(mutated(content, random.Random(seed)))
        try:
            manifest = stablehlo_loader.read_manifest(tmp_path)
        except stablehlo_loader.ArtifactError as error:
            messages.append(str(error))
            continue
        read += 1
        assert all("/" not in name and name not in ("", ".", "..") for name in manifest["files"])
    assert 0 < read < runs
    assert all("manifest" in message and len(message) < 1_000 for message in messages)


@some_runs
def test_mutated_headers_of_weights_are_read_or_refused(bundle, runs):
    """Whatever is read lies inside the file."""
    content, read, messages = (bundle / "weights.safetensors").read_bytes(), 0, []
    header = 8 + int.from_bytes(content[:8], "little")
    for seed in range(runs):
        damaged = mutated(content[:header], random.Random(seed)) + content[header:]
        try:
            tensors = stablehlo_loader.read_safetensors(np.frombuffer(damaged, np.uint8), "weights.safetensors")
        except stablehlo_loader.ArtifactError as error:
            messages.append(str(error))
            continue
        read += 1
        assert sum(array.nbytes for array in tensors.values()) <= len(damaged) * max(1, len(tensors))
    assert 0 < read < runs
    assert all("weights.safetensors" in message and len(message) < 1_000 for message in messages)


def test_the_loader_is_short_and_stands_alone(bundle):
    text = (bundle / "load.py").read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 100
    assert not {"pickle", "eval(", "exec(", "plait."} & {*text.replace("``plait", "").split()}
    apply = load(bundle)
    assert apply(batch(2))["logits"].shape == (2, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda signature: signature["inputs"][0].update(name="other"),
        lambda signature: signature["inputs"][0].update(dtype="int8"),
        lambda signature: signature["inputs"][0].update(shape=["b"]),
        lambda signature: signature.update(inputs=[]),
        lambda signature: signature.update(weights=[]),
    ],
)
def test_a_manifest_of_another_function_is_refused(copy, change):
    """E36: at loading, by the name of the function's file."""
    edit(copy, lambda manifest: change(next(iter(manifest["signatures"].values()))))
    with pytest.raises(ExportError, match=r"(?s)a function of different arrays.*\.jax_export"):
        load(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("versions"),
        lambda manifest: manifest.update(platforms="cpu"),
        lambda manifest: manifest["signatures"]["serving_default"]["inputs"][0].pop("dtype"),
        lambda manifest: manifest["signatures"]["serving_default"]["inputs"][0].update(shape="b"),
        lambda manifest: manifest["signatures"]["serving_default"].update(file="../function"),
        lambda manifest: manifest["weights"][0].update(shape=[-1]),
        lambda manifest: manifest.update(weight_files={}),
    ],
)
@pytest.mark.parametrize("read", [load, describe_exports, read_manifest], ids=["load", "describe", "read_manifest"])
def test_a_manifest_that_lacks_a_field_is_refused_by_all_readers(copy, change, read):
    edit(copy, change)
    with pytest.raises(ExportError, match=r"at +.*copy/manifest\.json\n"):
        read(copy)


def test_a_function_that_cannot_be_read_is_refused(copy):
    """E36: even if the sum of the file is right."""
    (place,) = copy.glob("*.jax_export")
    place.write_bytes(b"junk" * 10)
    edit(copy, lambda manifest: manifest["files"][place.name].update(sha256=hashlib.sha256(b"junk" * 10).hexdigest()))
    with pytest.raises(ExportError, match=r"\.jax_export is damaged"):
        load(copy)
