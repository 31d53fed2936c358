"""Names of packages that load on first use."""

import importlib
import pkgutil
import sys

import pytest

import plait
from plait import _public
from plait.util.lazy_names import lazy_names

PACKAGES = [
    "flax.bridge",
    "flax.bridge.module",
    "flax.bridge.variables",
    "flax.bridge.wrappers",
    "checkpoint",
    "convert",
    "inspect",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_package_is_found_and_no_file_of_it_hides_one(package):
    module = importlib.import_module(f"plait.{package}")
    files = {file.name for file in pkgutil.iter_modules(module.__path__)}
    for name in dir(module):
        value = getattr(module, name)
        assert (value is sys.modules.get(f"plait.{package}.{name}")) == (name in files), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'plait\.convert' has no attribute 'nothing'"):
        plait.convert.nothing  # type: ignore[attr-defined]


def test_names_are_those_of_other_packages_too():
    find, names = lazy_names("plait.bridge", {"..convert": "to_torch", "variables.": "collection_types"})
    assert names() == ["collection_types", "to_torch"]
    assert find("to_torch") is plait.convert.to_torch
    assert find("collection_types").variable_type("params") is plait.Param


def test_what_a_public_module_has_is_named_where_plait_is_asked_for_it():
    with pytest.raises(AttributeError, match=r"has no attribute 'fit'; it is plait\.training\.fit$"):
        plait.fit  # type: ignore[attr-defined]
    for name, module in _public.ELSEWHERE.items():
        assert hasattr(getattr(plait, module), name)
        assert not hasattr(plait, name)
