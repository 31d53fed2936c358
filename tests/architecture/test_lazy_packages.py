"""Packages that load their names on first use show and give the names that they list."""

import importlib
import types
from pathlib import Path

import pytest

import plait

SOURCE = Path(plait.__file__).parent
LAZY = sorted(
    ".".join(("plait", *file.parent.relative_to(SOURCE).parts))
    for file in SOURCE.rglob("__init__.py")
    if all(part in file.read_text(encoding="utf-8") for part in ("= lazy_names(", "__all__ = "))
)
HEAVY = {"plait.export"}  # it loads TensorFlow

each_package = pytest.mark.parametrize("name", LAZY)


@each_package
def test_it_shows_all_that_it_lists(name):
    package = importlib.import_module(name)
    assert len(package.__all__) == len(set(package.__all__)) > 1
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in LAZY])
def test_it_gives_all_that_it_lists(name):
    """Each from a module of its own, or of one that it stands for."""
    package = importlib.import_module(name)
    for public in package.__all__:
        value = getattr(package, public)
        assert getattr(package, public) is value
        if isinstance(value, types.FunctionType | type):
            assert value.__module__.split(".")[0] in ("plait", "jax", "optax", "typing"), public


@each_package
def test_a_name_that_it_does_not_have_is_told(name):
    with pytest.raises(AttributeError, match=rf"'{name}'.*'no_such_name'"):
        importlib.import_module(name).no_such_name
