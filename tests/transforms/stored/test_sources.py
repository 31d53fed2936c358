"""The files of the installed packages that take part in a program. (rule W3)"""

import sys
import sysconfig
import types

import pytest

from plait.transforms.stored.sources import sources_of


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
