"""A plugin of pytest under which ``plait`` is its heart alone: guests, and whatever is above them, cannot be imported.

The public names are those that core and transforms define. A test that asks for another one, or for ``graph=``, is no
test of the heart and is skipped; a file of plait that imports a guest fails.
"""

import functools
import importlib
import importlib.abc
import inspect
import sys
import types
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "plait"
HEART = ("core", "ground", "transforms", "errors", "typing", "_compat", "_public")


def skip(what):
    pytest.skip(f"{what} is not of the heart", allow_module_level=True)


class OnlyTheHeart(importlib.abc.MetaPathFinder):
    """Raises for modules of plait above the heart."""

    def find_spec(self, name, path, target=None):
        package, _, rest = name.partition(".")
        if package != "plait" or rest.partition(".")[0] in HEART:
            return
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if Path(frame.f_code.co_filename).is_relative_to(SOURCE):
            raise ImportError(f"{frame.f_code.co_filename}:{frame.f_lineno} imports {name}, a stranger to the heart")
        skip(name)


class Plait(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        skip(f"plait.{name}")


def without_modes(function):
    """The function, for tests that do not ask for a mode."""
    if not inspect.isfunction(function):
        return function

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not {"graph", "graph_updates"}.isdisjoint(kwargs):
            skip("a mode of Flax")
        return function(*args, **kwargs)

    return wrapper


def the_heart():
    """The package with the public names that the heart defines, and a layer."""
    plait = sys.modules["plait"] = Plait("plait")
    plait.__path__ = [str(SOURCE)]
    public = importlib.import_module("plait._public")
    files = sorted(file for area in ("core", "transforms") for file in (SOURCE / area).rglob("*.py"))
    modules = {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts): importlib.import_module(
            ".".join(("plait", *file.relative_to(SOURCE).with_suffix("").parts))
        )
        for file in files
        if file.name != "__init__.py"
    }
    defined = {
        name: value
        for module in modules.values()
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for name, place in public.PUBLIC.items():
        place, own = public.RENAMED.get(name, (place, name))
        if place in modules and hasattr(modules[place], own):
            setattr(plait, name, getattr(modules[place], own))
        elif place.startswith("compat.") and own in defined:
            setattr(plait, name, without_modes(defined[own]))
    plait.errors = importlib.import_module("plait.errors")

    class Linear(plait.Module):
        """``x @ kernel + bias``."""

        def __init__(self, size, features, *, rngs):
            self.kernel = plait.Param(rngs.params.normal((size, features)))
            self.bias = plait.Param(rngs.params.normal((features,)))

        def __call__(self, x):
            y = x @ self.kernel[...]
            return y + self.bias[...].reshape((1,) * (y.ndim - 1) + (-1,))

    plait.Linear = Linear


sys.meta_path.insert(0, OnlyTheHeart())
the_heart()
