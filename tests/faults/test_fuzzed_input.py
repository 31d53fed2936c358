"""Whatever a file or a user's text holds, there is an answer or an error of plait's own, and nothing else.

``test_readers.py`` damages the files of all readers at random; here are what a file must not say, and texts of users.
"""

import contextlib
import hashlib
import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

import plait
from plait.checkpoint import (
    Checkpoints,
    load_state,
    read_manifest,
    restore,
    save,
)
from plait.checkpoint.plain import stored_arrays
from plait.cli import main as cli
from plait.convert.linen_bytes import read_linen_bytes
from plait.errors import CheckpointError, PlaitError


def model():
    return plait.Linear(2, 3, rngs=plait.Rngs(0))


# Bytes ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


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
