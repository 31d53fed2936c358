"""``plait.cache``: later processes compile nothing, and folders that others can enter are refused. (rule D15)"""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError, MissingDependencyError, ProgramCacheError
from tests.sampling import slow_but

needs_modes = pytest.mark.skipif(os.name == "nt", reason="who may write is not in the mode there")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
SETTINGS = [name for name in jax.config.values if "compilation_cache" in name or "persistent_cache" in name]

PROGRAM = """
import collections, json, sys

import jax

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))

import plait

for folder in sys.argv[1:]:
    plait.cache(folder)

model = plait.Linear(2, 3, rngs=plait.Rngs(0))
y = plait.jit(lambda model, x: model(x))(model, jax.numpy.ones((1, 2)))
print(json.dumps({"y": y.tolist(), **events}))
"""


def process(*arguments, **variables):
    """What the program reports from a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_CACHE", "JAX_"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(plait.__file__).parents[1]), **variables}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("by", slow_but(["PLAIT_CACHE"], ["PLAIT_CACHE", "called"]))
def test_a_second_process_compiles_nothing(tmp_path, by):
    """Of what follows the import, model and arrays included."""
    folder = str(tmp_path / "programs")
    given = {"PLAIT_CACHE": folder} if by == "PLAIT_CACHE" else {}
    first, second = (process(*([] if given else [folder]), **given) for _ in range(2))
    assert second["cache_hits"] == second["compile_requests_use_cache"] == first["compile_requests_use_cache"] > 3
    assert first["cache_misses"] > 3
    assert second["y"] == first["y"]


@pytest.fixture
def settings():
    """JAX's settings before; they are the same afterwards."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield before
    plait.cache(None)
    assert {name: getattr(jax.config, name) for name in SETTINGS} == before


def test_none_gives_jax_its_settings_back(tmp_path, settings):
    plait.cache(tmp_path / "one", limit=2**20)
    plait.cache(tmp_path / "two")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "two")
    assert jax.config.jax_compilation_cache_max_size == settings["jax_compilation_cache_max_size"]
    jax.jit(lambda x: x * 17 + 4)(jnp.ones(3))
    assert any((tmp_path / "two").iterdir())
    assert [*(tmp_path / "one").iterdir()] == []
    plait.cache(None)
    assert jax.config.jax_compilation_cache_dir == settings["jax_compilation_cache_dir"]


@pytest.mark.usefixtures("settings")
def test_the_limit_holds(tmp_path):
    pytest.importorskip("filelock")
    plait.cache(tmp_path, limit=20_000)
    for k in range(20):
        jax.jit(lambda x, k=k: x * k + 41)(jnp.ones(3))
    sizes = [file.stat().st_size for file in tmp_path.glob("*-cache")]
    assert 5_000 < sum(sizes) <= 20_000


def test_a_limit_that_jax_could_not_keep_is_refused(tmp_path, monkeypatch, settings):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install filelock"):
        plait.cache(tmp_path, limit=1)
    assert jax.config.jax_compilation_cache_dir == settings["jax_compilation_cache_dir"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(tmp_path, limit, settings):
    with pytest.raises(ArgumentError, match=r"at +limit\n"):
        plait.cache(tmp_path / "programs", limit=limit)
    assert not (tmp_path / "programs").exists()
    assert {name: getattr(jax.config, name) for name in SETTINGS} == settings


def test_a_remote_store_is_left_to_jax(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProgramCacheError, match=r'jax.config.update\("jax_compilation_cache_dir", "gs://bucket/x"\)'):
        plait.cache("gs://bucket/x")
    assert [*tmp_path.iterdir()] == []


# What is spoiled, below a folder that holds the cache → how.
SPOILED = {
    "the folder": ("top/programs", lambda path: path.chmod(0o710)),
    "a link": ("top/programs/link", lambda path: path.symlink_to("autotune")),
    "a folder above it": ("top", lambda path: path.chmod(0o777)),
    "another's folder": ("top/programs", lambda path: shutil.chown(path, 12345)),
    "another's folder in it": ("top/programs/autotune", lambda path: shutil.chown(path, 12345)),
    "another's file in it": ("top/programs/autotune/file", lambda path: shutil.chown(path, 12345)),
    "another's sticky folder above it": ("top", lambda path: (path.chmod(0o1777), shutil.chown(path, 12345))),
}


def made(folder):
    """A folder as a cache of JAX leaves it with a umask of 0002."""
    (folder / "top/programs/autotune").mkdir(parents=True)
    (folder / "top/programs/autotune/file").touch()
    for path in folder.rglob("*"):
        path.chmod(0o775)
    (folder / "top/programs").chmod(0o700)
    return folder / "top/programs"


@needs_modes
@pytest.mark.parametrize("name", [pytest.param(n, marks=[needs_root] * n.startswith("another")) for n in SPOILED])
def test_what_others_can_change_is_refused(tmp_path, name, settings):
    programs = made(tmp_path)
    place, spoil = SPOILED[name]
    spoil(tmp_path / place)
    with pytest.raises(ProgramCacheError, match=rf"at +{tmp_path / place}\n"):
        plait.cache(programs)
    assert jax.config.jax_compilation_cache_dir == settings["jax_compilation_cache_dir"]


@needs_modes
@pytest.mark.usefixtures("settings")
def test_what_is_safe_is_used(tmp_path):
    """Behind a link, below a sticky folder, and with anything inside, where nobody else can enter."""
    programs = made(tmp_path)
    (tmp_path / "top").chmod(0o1777)
    (tmp_path / "link").symlink_to(programs)
    plait.cache(tmp_path / "link")
    assert jax.config.jax_compilation_cache_dir == str(programs)


@needs_modes
@pytest.mark.usefixtures("settings")
def test_a_folder_that_readers_can_enter_is_refused_at_once_and_used_after_the_advice(tmp_path):
    """Not by a later process, when JAX has written files to it."""
    programs = tmp_path / "my programs"
    programs.mkdir()
    programs.chmod(0o755)
    with pytest.raises(ProgramCacheError, match=r"mode 0755") as refused:
        plait.cache(programs)
    advice = str(refused.value).partition("do ")[2].split("\n")[0].strip()
    assert shlex.split(advice) == ["chmod", "700", str(programs)]
    subprocess.run(shlex.split(advice), check=True)
    plait.cache(programs)


@needs_modes
@pytest.mark.usefixtures("settings")
def test_a_new_folder_is_for_its_owner(tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        monkeypatch.setenv("HOME", str(tmp_path))
        plait.cache("~/programs")
    finally:
        os.umask(before)
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProgramCacheError, match=rf"at +{tmp_path}/file/programs\n"):
        plait.cache(tmp_path / "file" / "programs")
