"""Whatever a file or a user's text holds, there is an answer or an error of plait's own, and nothing else.

Bundles of exports have a test of their own: ``tests/export/formats/test_damaged_bundles.py``.
"""

import contextlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

import plait
from plait import cli
from plait.checkpoint import load_safetensors, load_state, read_manifest, restore, save, save_safetensors
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


@given(edits(LINEN))
def test_linen_bytes(content):
    with contextlib.suppress(PlaitError):
        read_linen_bytes(content)


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    save(folder, {"model": model()}, step=3, metrics={"loss": 0.5}, extra={"note": "x"})
    return folder


@given(st.data())
def test_manifests_of_any_json(saved, data):
    """Its sums are not its own here: what is read must be refused or be what was saved."""
    file = saved / "plait.json"
    content = file.read_bytes()
    target = model()
    before = np.asarray(target.kernel.value)
    try:
        file.write_text(json.dumps(data.draw(replaced(json.loads(content)))))
        for read in (read_manifest, load_state, lambda path: restore(path, {"model": target})):
            with contextlib.suppress(PlaitError):
                read(saved)
    finally:
        file.write_bytes(content)
    np.testing.assert_array_equal(target.kernel.value, before)  # the same seed made both


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
    ["inspect", "validate", "export", "migrate", "--help", "--check", "--report", "--", "-", "", "--target", "--rtol"]
    + ["tensorflow==2.14", "=", "\x00", "nowhere", "/", "nan", "-1", "1e400", "--formats", "onnx", "--inputs", "x=(1,)"]
) | st.text(max_size=5)


@given(
    st.sampled_from(["inspect", "validate", "export", "migrate", "run", "launch", "nothing"]),
    st.lists(words, max_size=4),
)
@example("validate", ["nowhere", "--rtol", "nan"])
def test_command_lines(place, command, rest):
    """A status or argparse's exit; the programs of `run` and `launch` are not to be started here."""
    assume(command not in ("run", "launch") or "--" not in rest)
    assume(command != "migrate" or not {"/", "-", ""} & {*rest})  # it would look through the whole disk
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = cli.main([command, *rest])
        except SystemExit as end:
            status = end.code
    assert status in (0, 1, 2), errors.getvalue()
    assert "Traceback" not in errors.getvalue()
