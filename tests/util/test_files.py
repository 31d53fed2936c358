"""Paths that users give, and what is in the place of files."""

import os
import re
import resource
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import checkpoint, convert, export, training
from plait.errors import PlaitError
from plait.util.files import check_files, given_path, open_file, read_file
from tests.sampling import slow_but


def linear():
    return plait.Linear(2, 3, rngs=plait.Rngs(0))


def adapted():
    model = plait.Dict(fc=linear())
    plait.add_lora(plait.select(model, "fc"), 1, rngs=plait.Rngs(0))
    return model


def compiled():
    return plait.jit(lambda x: 2 * x).lower(jnp.ones(2)).compile()


def log(kind):
    def write(path):
        logger = kind(path)
        try:
            logger.write(1, {"loss": 0.5})
        finally:
            logger.close()

    return write


WEIGHTS = {"w": np.ones(2, np.float32)}
# What is written, and how it is read again.
ROWS = {
    "save": (lambda path: checkpoint.save(path, linear()), lambda path: checkpoint.restore(path, linear())),
    "load_state": (lambda path: checkpoint.save(path, linear()), checkpoint.load_state),
    "read_manifest": (lambda path: checkpoint.save(path, linear()), checkpoint.read_manifest),
    "Checkpoints": (lambda path: checkpoint.Checkpoints(path).save(1, linear()), checkpoint.latest),
    "safetensors": (lambda path: checkpoint.save_safetensors(path, WEIGHTS), checkpoint.load_safetensors),
    "convert_checkpoint": (
        lambda path: checkpoint.save_safetensors(path, convert.to_torch(linear())),
        lambda path: convert.convert_checkpoint(path, linear(), layout="torch"),
    ),
    "peft": (
        lambda path: convert.save_peft(path, adapted()),
        lambda path: convert.load_peft(path, plait.Dict(fc=linear())),
    ),
    "export": (lambda path: export.save(linear(), path, inputs=("batch", 2), formats="stablehlo"), export.load),
    "describe": (
        lambda path: export.save(linear(), path, inputs=("batch", 2), formats="stablehlo"),
        export.describe_exports,
    ),
    "compiled": (lambda path: compiled().save(path), plait.load_compiled),
    "explore": (
        lambda path: plait.explore(linear(), to=path),
        lambda path: plait.explore(linear(), to=path),
    ),
    "explore a file": (
        lambda path: checkpoint.save_safetensors(path, WEIGHTS),
        lambda path: plait.explore(path, to="page.html"),
    ),
    "JsonLines": (log(training.JsonLines),) * 2,
    "TensorBoard": (log(training.TensorBoard),) * 2,
}
each_row = pytest.mark.parametrize("name", slow_but(lambda name: name != "Checkpoints", ROWS))


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


@each_row
def test_a_tilde_is_the_home_folder(name, home):
    write, read = ROWS[name]
    write("~/x")
    assert (home / "x").exists()
    read("~/x")
    assert not os.path.lexists("~")


@each_row
@pytest.mark.parametrize("path", ["gs://bucket/x", "gs:/bucket/x", "a\0b", "a" * 300, "a/" * 3_000])
def test_a_path_that_is_none_is_refused(name, path, home):
    for act in ROWS[name]:
        with pytest.raises(PlaitError, match=re.escape(path[:20])):
            act(path)
    assert os.listdir() == []


@each_row
def test_what_is_no_path_is_refused(name, home):
    for path in (None, 3, ["x"], plait.Linear):
        with pytest.raises(PlaitError, match="this is not a path"):
            ROWS[name][0](path)
    ROWS[name][0](b"x")
    assert os.path.lexists("x")


def _everything():
    return {str(each): each.read_bytes() if each.is_file() else None for each in Path().rglob("*")}


@pytest.mark.parametrize("name", ["safetensors", "peft", "export", "compiled", "explore", "JsonLines", "TensorBoard"])
def test_a_disk_that_takes_no_more_is_an_error_that_names_the_path(name, home):
    """What was there stays, and nothing else does. (test_disks.py: checkpoints)"""
    write, read = ROWS[name]
    write("old")
    before, limits = _everything(), resource.getrlimit(resource.RLIMIT_FSIZE)
    for path in ("old", "new") if name in ("peft", "compiled", "explore") else ("new",):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(PlaitError, match=rf"at +\S*{path}(.|\n)*File too large"):
                write(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        after = _everything()
        assert {file: after[file] for file in before} == before
        assert all(not content for file, content in after.items() if file not in before)
    read("old")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a pipe"),
        (os.mkdir, "a folder"),
        (lambda path: os.symlink("/dev/zero", path), "a device"),
        (lambda path: os.symlink("x", path), "symbolic links"),
    ],
)
def test_what_is_no_file_is_not_read(tmp_path, make, what):
    make(tmp_path / "x")
    for read in (open_file, read_file):
        with pytest.raises(OSError, match=what):
            read(tmp_path / "x")
    if what != "a folder":
        with pytest.raises(OSError, match=what):
            check_files(tmp_path)


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_file(tmp_path / "x", most=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(tmp_path / "x", most=4)


def test_links_to_files_are_followed_and_links_to_folders_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "folder" / "y").symlink_to(tmp_path / "x")
    check_files(tmp_path)
    assert read_file(tmp_path / "folder" / "y") == b"12345"
    (tmp_path / "folder" / "z").symlink_to(tmp_path)
    with pytest.raises(OSError, match="a folder"):
        check_files(tmp_path)


def test_an_unknown_home_stays(tmp_path):
    assert str(given_path("~nobody-has-this-name/x")) == "~nobody-has-this-name/x"
