"""The files of the installed packages that take part in a program. (rule W3)"""

import importlib
import os
import subprocess
import sys
import sysconfig
import time
import types
import zipfile

import pytest

from plait.warm import origins, sources
from plait.warm.descriptions import Unrecordable
from plait.warm.sources import sources_of, sources_token


class LoadsWhenAsked(types.ModuleType):
    """A module that loads another package when any attribute is asked for that it does not have, even its name."""

    def __getattr__(self, name):
        raise ImportError(f"{name} of a package that is not installed")


class LoadsAlways(types.ModuleType):
    """The same for every attribute, as the modules of ``importlib.util.LazyLoader``."""

    def __getattribute__(self, name):
        raise ImportError(f"{name} of a package that is not installed")


@pytest.mark.parametrize("kind", [LoadsWhenAsked, LoadsAlways])
def test_modules_that_load_themselves_are_left_alone(kind, monkeypatch):
    folder = sysconfig.get_path("purelib")
    holder = types.ModuleType("holder_library")
    holder.__file__ = f"{folder}/holder_library.py"
    holder.nameless, holder.part = kind.__new__(kind), kind("holder_library.part")
    types.ModuleType.__getattribute__(holder.part, "__dict__")["__file__"] = f"{folder}/holder_part.py"
    monkeypatch.setitem(sys.modules, "holder_library", holder)
    monkeypatch.setitem(sys.modules, "holder_library.part", holder.part)
    assert sources_of(["holder_library"]) == {"holder_library": ["holder_library.py", "holder_part.py"]}


@pytest.mark.parametrize("path", [[None], [], None])
def test_a_package_without_a_folder_has_its_file(path, monkeypatch):
    """Wrapped modules have such paths."""
    module = types.ModuleType("wrapped_library")
    module.__path__ = path
    module.__file__ = f"{sysconfig.get_path('purelib')}/wrapped_library.py"
    monkeypatch.setitem(sys.modules, "wrapped_library", module)
    assert sources_of(["wrapped_library"]) == {"wrapped_library": ["wrapped_library.py"]}


def test_a_package_in_an_archive_is_compared(tmp_path, monkeypatch):
    archive = tmp_path / "zipped.zip"
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.setattr(sources, "STARTED", float("inf"))
    monkeypatch.setattr(origins, "INSTALLED", (str(archive),))
    origins.origin_of.cache_clear()
    tokens = []
    for rate in (2.0, 2.0, 3.0):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(zipfile.ZipInfo("zipped_library/__init__.py"), f"RATE = {rate}")  # of 1980, not of now
        importlib.invalidate_caches()
        assert rate == importlib.import_module("zipped_library").RATE
        files = sources_of(["zipped_library"])
        assert files == {"zipped_library": ["zipped_library/__init__.py"]}
        tokens.append(sources_token("zipped_library", files["zipped_library"]))
        monkeypatch.delitem(sys.modules, "zipped_library")
        sys.path_importer_cache.clear()
    assert tokens[0] == tokens[1] != tokens[2]
    origins.origin_of.cache_clear()


def test_a_file_that_is_newer_than_the_process_is_refused(tmp_path, monkeypatch):
    """W4: by any change of the file, also one that keeps its date."""
    file = tmp_path / "newer_library.py"
    file.write_text("RATE = 2.0")
    os.utime(file, (0, 0))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("newer_library")
    with pytest.raises(Unrecordable, match=r"newer_library\.py was changed after this process started"):
        sources_token("newer_library", ["newer_library.py"])
    monkeypatch.delitem(sys.modules, "newer_library")


def test_a_process_knows_when_it_started():
    """W4: files that were there before are compared, in a process that starts at once."""
    text = "import time; from plait.warm.sources import STARTED; print(STARTED, time.time())"
    before = time.time()
    printed = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    started, now = map(float, printed.split())
    assert before - 0.1 < started < now - 0.1
