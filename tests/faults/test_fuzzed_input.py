"""Whatever a file or a user's text holds, there is an answer or an error of plait's own, and nothing else.

Bundles of exports have a test of their own: ``tests/export/formats/test_damaged_bundles.py``.
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

import plait
from plait.checkpoint import (
    Checkpoints,
    Keep,
    layout,
    load_safetensors,
    load_state,
    read_manifest,
    restore,
    save,
    save_safetensors,
)
from plait.checkpoint.plain import stored_arrays
from plait.cli import main as cli
from plait.convert.linen_bytes import read_linen_bytes
from plait.errors import CheckpointError, PlaitError

WEIGHTS = {"layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "layer.bias": np.zeros(3, np.float16)}


def model():
    return plait.Linear(2, 3, rngs=plait.Rngs(0))


def use(stored):
    """Read the arrays, too, which a header only promises."""
    for array in stored.values():
        np.asarray(array.read() if hasattr(array, "read") else array)


# Bytes ----------------------------------------------------------------------------------------------------------------


@st.composite
def edits(draw, content):
    """Content with a few places changed, cut out or filled in."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        gone = draw(st.sampled_from([0, 1, 1, 4, len(content)]))
        content[place : place + gone] = draw(st.binary(max_size=8))
    return bytes(content)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


def safetensors_bytes():
    with tempfile.TemporaryDirectory() as folder:
        save_safetensors(Path(folder, "a.safetensors"), WEIGHTS)
        return Path(folder, "a.safetensors").read_bytes()


SAFETENSORS = safetensors_bytes()
HEADER = json.loads(SAFETENSORS[8 : 8 + int.from_bytes(SAFETENSORS[:8], "little")])
LINEN = flax.serialization.to_bytes({"params": {"dense": WEIGHTS, "scale": np.float32(2)}, "step": 3})


@given(edits(SAFETENSORS))
def test_safetensors_of_any_bytes(place, content):
    file = place / "a.safetensors"
    file.write_bytes(content)
    with contextlib.suppress(PlaitError):
        use(load_safetensors(file))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def replaced(draw, tree):
    """A JSON value with a value somewhere in it replaced, dropped or added."""
    if isinstance(tree, (dict, list)) and tree and draw(st.integers(0, 5)):
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = draw(st.sampled_from(keys))
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        if not draw(st.integers(0, 7)):
            del copy[key]
        else:
            copy[key] = draw(replaced(tree[key]))
        return copy
    return draw(json_values)


@given(replaced(HEADER))
@example({"layer.weight": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 48]}})
def test_safetensors_of_any_header(place, header):
    """A header that claims more than there is takes no memory: reading it would fail by its size."""
    text = json.dumps(header).encode()
    file = place / "b.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with contextlib.suppress(PlaitError):
        use(load_safetensors(file))


@given(st.data())
def test_indices_of_any_json(place, data):
    folder = place / "shards"
    if not folder.is_dir():
        save_safetensors(folder, WEIGHTS, shard_bytes=10)
    index = folder / "model.safetensors.index.json"
    content = index.read_bytes()
    try:
        index.write_text(json.dumps(data.draw(replaced(json.loads(content)))))
        with contextlib.suppress(PlaitError):
            use(load_safetensors(folder))
    finally:
        index.write_bytes(content)


@given(edits(LINEN))
def test_linen_bytes(content):
    with contextlib.suppress(PlaitError):
        read_linen_bytes(content)


@given(st.integers(0, 4), st.data())
def test_linen_extensions_of_any_content(code, data):
    """What is inside of an array, a complex number or a chunked array, which damaged bytes seldom reach."""
    array = [[2, 3], "float32", bytes(24)]
    inside = data.draw(replaced(array) | replaced([0.5, 1.5]) | json_values)
    chunked = {"__msgpack_chunked_array__": True, "shape": {"0": 1}, "chunks": {"0": np.zeros(1)}}
    try:
        packed = msgpack.packb(inside)
    except (OverflowError, ValueError):  # msgpack has no such integer
        packed = b""
    trees = [{"a": msgpack.ExtType(code, packed)}, {"a": data.draw(replaced(chunked))}]
    for tree in trees:
        try:
            content = flax.serialization.to_bytes(tree) if tree is trees[1] else msgpack.packb(tree)
        except (TypeError, ValueError, OverflowError):  # msgpack has no such value
            continue
        with contextlib.suppress(PlaitError):
            read_linen_bytes(content)


@pytest.mark.parametrize("depth", [400, 100_000])
def test_linen_bytes_that_are_nested_too_deeply(depth):
    with pytest.raises(CheckpointError, match=r"incomplete or damaged|not a Linen"):
        read_linen_bytes(b"\x91" * depth + b"\x01")
    with contextlib.suppress(CheckpointError):
        read_linen_bytes(b"\x81\xa1a" * depth + b"\x01")


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    save(folder, {"model": model()}, step=3, metrics={"loss": 0.5}, extra={"note": "x"})
    return folder


def summed(stored):
    """A manifest with its own checksum, so that damage gets past it."""
    if isinstance(stored, dict):
        stored = {name: value for name, value in stored.items() if name != "sha256"}
        stored["sha256"] = hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
    return stored


def read_everything(saved, target):
    """Each reader of a checkpoint has an answer or an error; those of a folder of checkpoints skip damaged ones."""
    for read in (read_manifest, load_state, use_arrays, lambda path: restore(path, {"model": target}, partial=True)):
        with contextlib.suppress(PlaitError):
            read(saved)
    layout.latest(saved.parent)
    layout.damaged_in(saved.parent)
    Keep(best=1, metric="loss", hours=1).chosen(layout.saved_in(saved.parent))


def use_arrays(path):
    use(stored_arrays(path))


@given(st.data())
def test_manifests_of_any_json(saved, data):
    """Their sums are right. What is read is refused, or is the JSON that the manifest says."""
    file = saved / "plait.json"
    content = file.read_bytes()
    try:
        file.write_text(json.dumps(summed(data.draw(replaced(json.loads(content))))))
        read_everything(saved, model())
    finally:
        file.write_bytes(content)


WRONG = {
    "no step": {"step": ...},
    "a step that is text": {"step": "3"},
    "a step that is true": {"step": True},
    "no files": {"files": ...},
    "a file above the folder": {"files": {"../secret": [1, "0" * 64]}},
    "an absolute file": {"files": {"/etc/passwd": [1, "0" * 64]}},
    "a file with a number as checksum": {"files": {"arrays/_METADATA": [1, 2]}},
    "a file without a checksum": {"files": {"arrays/_METADATA": [1]}},
    "files in a list": {"files": ["arrays/_METADATA"]},
    "leaves in a list": {"leaves": []},
    "a leaf that is text": {"leaves": {"model.kernel": "float32"}},
    "a shape that is text": {"leaves": {"model.kernel": {"kind": "array", "dtype": "float32", "shape": "23"}}},
    "a negative size": {"leaves": {"model.kernel": {"kind": "array", "dtype": "float32", "shape": [-1]}}},
    "an array without end": {"leaves": {"a": {"kind": "array", "dtype": "float32", "shape": [2**40, 2**40]}}},
    "a dtype of objects": {"leaves": {"model.kernel": {"kind": "array", "dtype": "object", "shape": [2, 3]}}},
    "no dtype": {"leaves": {"model.kernel": {"kind": "array", "shape": [2, 3]}}},
    "a kind that is a list": {"leaves": {"model.kernel": {"kind": [], "value": "3"}}},
    "a number that is none": {"leaves": {"model.kernel": {"kind": "int", "value": "three"}}},
    "a metric that is a list": {"metrics": {"loss": [0.5]}},
    "a time that is infinite": {"time": float("inf")},
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_manifest_with_its_own_checksum_and_wrong_fields(saved, change, tmp_path):
    """It does not break the others of its folder: saving, listing and restoring."""
    folder = shutil.copytree(saved.parent, tmp_path / "run")
    file = shutil.copytree(saved, folder / "step-00000009") / "plait.json"
    stored = {**json.loads(file.read_text()), "step": 9, **change}
    file.write_text(json.dumps(summed({name: value for name, value in stored.items() if value is not ...})))
    for read in (read_manifest, load_state, lambda path: restore(path, {"model": model()})):
        with pytest.raises(
            CheckpointError, match=r"incomplete or damaged\n +at +.*step-00000009\n +found +a plait.json"
        ):
            read(folder / "step-00000009")
    with Checkpoints(folder) as checkpoints:
        assert [each.step for each in checkpoints.all()] == [3]
        assert checkpoints.restore({"model": model()}).step == 3
        checkpoints.save(9, {"model": model()})
        assert [each.step for each in checkpoints.all()] == [3, 9]


@pytest.mark.parametrize("depth", [500, 100_000])
@pytest.mark.parametrize("form", ['{"a": %s}', "%s"])
def test_a_manifest_that_is_nested_too_deeply(saved, tmp_path, depth, form):
    folder = shutil.copytree(saved, tmp_path / "deep")
    (folder / "plait.json").write_text(form % ("[" * depth + "]" * depth))
    with pytest.raises(CheckpointError, match=r"at +.*deep\n"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "name", ["blocks[0:999999999999].kernel", "a[{[]: 1}]", "a[[1]]", "a[" + "(" * 5_000 + "]", "]"]
)
def test_names_of_leaves_that_no_model_has(saved, tmp_path, name):
    folder = shutil.copytree(saved, tmp_path / "named")
    stored = json.loads((folder / "plait.json").read_text())
    stored["leaves"][name] = {"kind": "array", "dtype": "float32", "shape": [0]}
    (folder / "plait.json").write_text(json.dumps(summed(stored)))
    for read in (load_state, stored_arrays):
        read(folder)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(folder, {"model": model(), "blocks": model()})


@pytest.mark.slow
@given(st.data())
def test_positions_of_any_json(saved_with_data, data):
    file = saved_with_data / "positions" / "0-of-1.json"
    content, manifest = file.read_bytes(), (saved_with_data / "plait.json").read_bytes()
    changed = json.dumps(data.draw(replaced(json.loads(content)))).encode()
    stored = json.loads(manifest)
    stored["files"]["positions/0-of-1.json"] = [len(changed), hashlib.sha256(changed).hexdigest()]
    try:
        file.write_bytes(changed)
        (saved_with_data / "plait.json").write_text(json.dumps(summed(stored)))
        with contextlib.suppress(PlaitError):
            restore(saved_with_data, {"model": model(), "data": Position()})
    finally:
        file.write_bytes(content)
        (saved_with_data / "plait.json").write_bytes(manifest)


class Position:
    """An iterator that takes any position."""

    def __iter__(self):
        return self

    def __next__(self):
        return 0

    def get_state(self):
        return {"epoch": 1, "index": [2, 3]}

    def set_state(self, state):
        self.state = state


@pytest.fixture(scope="module")
def saved_with_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    save(folder, {"model": model(), "data": Position()})
    return folder


def _same_json(a, b):
    """Whether two texts are the same JSON: blanks between its parts say nothing, and are not part of its sum."""
    with contextlib.suppress(ValueError):
        return json.loads(a) == json.loads(b)
    return False


@given(st.data())
def test_any_file_of_a_checkpoint(saved, data):
    file = data.draw(st.sampled_from(sorted(file for file in saved.rglob("*") if file.is_file())))
    content = file.read_bytes()
    changed = data.draw(edits(content))
    assume(changed != content and not (file.name == "plait.json" and _same_json(changed, content)))
    try:
        file.write_bytes(changed)
        with pytest.raises(CheckpointError, match=re.escape(file.name)):
            restore(saved, {"model": model()})
    finally:
        file.write_bytes(content)


def test_the_checkpoint_is_as_it_was(saved, tmp_path):
    """Otherwise the two tests above have shown nothing."""
    target = model()
    target.kernel.value = jnp.zeros_like(target.kernel.value)
    restore(shutil.copytree(saved, tmp_path / "copy"), {"model": target})
    np.testing.assert_array_equal(target.kernel.value, model().kernel.value)


# Texts and literals ---------------------------------------------------------------------------------------------------

# Functions of no arguments: a wrong literal is refused when it is put into another.
simple = [..., None, True, False, plait.Param, plait.Linear, 3, 1.5, b"x", object(), len, int, "tag", ""]
filter_literals = st.recursive(
    st.sampled_from(simple).map(lambda literal: lambda: literal)
    | (st.text(max_size=3) | st.integers()).map(lambda key: lambda: plait.PathContains(key)),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: lambda: [part() for part in parts])
        | inner.map(lambda part: lambda: plait.Not(part()))
        | st.lists(inner, max_size=2).map(lambda parts: lambda: plait.All(*(part() for part in parts)))
        | inner.map(lambda part: lambda: {"a": part()})
    ),
    max_leaves=4,
)


@given(filter_literals)
def test_filters(literal):
    """G30: a literal is a filter, or an error that says what is one."""
    with contextlib.suppress(PlaitError, TypeError):  # a callable may not take a path and a variable
        plait.state(model(), literal(), ...)


patterns = st.text(alphabet="abl.*{}()[]?+\\d|^$12_", max_size=12)


@given(st.dictionaries(patterns, st.none() | patterns, max_size=3))
def test_patterns_of_names(names):
    weights = {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)}
    with contextlib.suppress(PlaitError):
        plait.bridge.convert_checkpoint(weights, model(), names=names, layout="linen")


words = st.sampled_from(
    ["inspect", "validate", "export", "--help", "--report", "--", "-", "", "--target", "--rtol"]
    + ["tensorflow==2.14", "=", "\x00", "nowhere", "/", "nan", "-1", "1e400", "--formats", "onnx", "--inputs", "x=(1,)"]
) | st.text(max_size=5)


@given(
    st.sampled_from(["inspect", "validate", "export", "run", "launch", "nothing"]),
    st.lists(words, max_size=4),
)
@example("validate", ["nowhere", "--rtol", "nan"])
def test_command_lines(place, command, rest):
    """A status or argparse's exit; the programs of `run` and `launch` are not to be started here."""
    assume(command not in ("run", "launch") or "--" not in rest)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = cli.main([command, *rest])
        except SystemExit as end:
            status = end.code
    assert status in (0, 1, 2), errors.getvalue()
    assert "Traceback" not in errors.getvalue()
